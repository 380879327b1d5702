"""What does a revision record of its run, in what do two records differ, and is it so again?"""
