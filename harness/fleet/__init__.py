"""Work on several GPUs: units of work, the workers that perform them, and what comes back.

units.py    a unit of work: one command of harness in a process of its own, on one GPU
parcel.py   what a unit takes along to another machine: files and compiled kernels
cluster.py  workers of Dask distributed, one for each GPU, here or elsewhere
cards.py    which GPU may have which unit; one that fails where others do not is left out
sweep.py    all units performed, wherever a GPU is free
merge.py     what all units have measured, put together
"""
