// Written by `python -m perf.gpu.measured`; nothing has been measured yet.
