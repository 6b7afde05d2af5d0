"""What is looked at in a site by ``spotburst check``: readings in, findings out. Only ``reading`` and ``written`` look at the machine;
``slurm_plugin.cli.look`` puts all together."""
