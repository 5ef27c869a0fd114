"""From a module's forward passes to outputs, spectra and a row of metrics, without Lightning."""
