//! MariaDB's own tests, with all their servers under the library.
