"""What a person measures: one harness, one file of cases per operator family, results per device."""
