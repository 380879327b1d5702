"""The examination by subjects: each module runs its probes, and gives a value to each of its rules.

Probes run on what `scene` holds, from the state that the user left, and put everything back.
"""
