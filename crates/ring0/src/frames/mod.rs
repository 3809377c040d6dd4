//! Physical frames: preallocated, never zeroed, handed out through thread-local free lists (5.2, 6.1).
