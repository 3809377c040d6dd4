//! Page tables: x86-64 entries, and mapping, protecting, walking and cloning over them.
