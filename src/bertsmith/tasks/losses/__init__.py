"""Losses that several tasks share: of vectors and scores, of students, of a whole batch in little memory."""
