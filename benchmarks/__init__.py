"""The instrument: what measures the ladder, as asv benchmarks and as commands.

asv installs the ``sgemm`` of the commit that it measures and runs these files, of the checkout,
against it. They use no more of that package than ``LADDER``, ``matmul(a, b, out=, version=)`` and
``compile(version, arch=)``, so that today's instrument measures yesterday's kernels. asv imports
every module here in an environment that may hold nothing but the package's own requirements:
what only a GPU or only a command needs is imported where it is used.
"""
