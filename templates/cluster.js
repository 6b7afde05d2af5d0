"use strict";
// Asks for the page anew and changes only what differs: nothing flickers, and what is selected, scrolled or focused stays so.
const every = 2000;
const note = document.getElementById("refresh");

function change(old, now) {
  if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName || old.id !== now.id) {
    old.replaceWith(now.cloneNode(true));
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== now.nodeValue) old.nodeValue = now.nodeValue;
    return;
  }
  for (const {name} of [...old.attributes]) if (!now.hasAttribute(name)) old.removeAttribute(name);
  for (const {name, value} of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  keep(old, now);
  const wanted = [...now.childNodes];
  wanted.forEach((child, at) => (at < old.childNodes.length ? change(old.childNodes[at], child) : old.append(child.cloneNode(true))));
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

// Rows keep their place in the document by their key, so that one that goes or comes moves no other's text.
function keep(old, now) {
  if (old.nodeName !== "TBODY") return;
  const rows = new Map([...old.children].map(row => [row.dataset.key, row]));
  const keys = new Set([...now.children].map(row => row.dataset.key));
  for (const [key, row] of rows) if (!keys.has(key)) row.remove();
  [...now.children].forEach((row, at) => {
    const here = old.children[at];
    const mine = rows.get(row.dataset.key) ?? row.cloneNode(true);
    if (here !== mine) old.insertBefore(mine, here ?? null);
  });
  for (const text of [...old.childNodes]) if (text.nodeType === Node.TEXT_NODE) text.remove();
  for (const text of [...now.childNodes]) if (text.nodeType === Node.TEXT_NODE) text.remove();
}

async function refresh() {
  try {
    const answer = await fetch("/", {cache: "no-store", signal: AbortSignal.timeout(10000)});
    if (!answer.ok) throw new Error(answer.status);
    const now = new DOMParser().parseFromString(await answer.text(), "text/html");
    change(document.getElementById("live"), now.getElementById("live"));
    say("Goes on by itself, every 2 seconds.");
  } catch {
    say("The manager does not answer: what stands here is old. It is asked again.");
  }
  setTimeout(refresh, document.hidden ? 5 * every : every);
}

function say(text) {
  if (note.textContent !== text) note.textContent = text;
}

setTimeout(refresh, every);
