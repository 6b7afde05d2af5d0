"""What slurm.conf names as ResumeProgram, SuspendProgram and ResumeFailProgram: record the request, wake the manager, return."""
