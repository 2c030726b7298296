"""What users of other serving systems reported, and that it does not happen here."""
