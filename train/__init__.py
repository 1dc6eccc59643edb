"""How a model comes to be: depth sweeps, trained data-parallel and resumable at any moment."""
