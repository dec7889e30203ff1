"""Pictures of the theory of gates, of Lyapunov spectra and of non-normal weights."""
