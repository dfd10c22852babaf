"""What became of decisions: were the predictions about a rank true?

rank_trust: what is known of one rank;  checks: the few bookings that are followed to find out.
What is compared with a prediction afterwards enters here; no decision asks for it.
"""
