"""One plug-in of each kind for Detent, each as short as it can be."""
