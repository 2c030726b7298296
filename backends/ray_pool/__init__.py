"""Any backend on the machines of a Ray cluster: whole replicas, or tables that are shared out."""
