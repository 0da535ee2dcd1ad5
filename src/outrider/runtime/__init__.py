"""The machine under the library: CPU facts, threads, clocks, files, the cache directory, the garbage collector."""
