// Written by `python -m perf.gpu_plan`; nothing has been measured yet.
