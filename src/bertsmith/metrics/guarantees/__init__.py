"""What may be claimed of a model that answers in a teacher's place, and how sure the claim is."""
