"""``spotburst report``: one run's story in numbers (`record`, `curves`), as pictures (`draw`), as text and as a page. Pure, but for reading templates."""
