"""What every backend for DLRMs shares: the artifact folder, its manifest, the gathered batch."""
