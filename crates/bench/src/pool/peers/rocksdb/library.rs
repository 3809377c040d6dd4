//! The distribution's RocksDB, loaded at run time through its C interface. Compiling RocksDB takes longer than all the
//! rest, and this crate must build without it.

use std::ffi::{c_char, c_double, c_int, c_uchar, c_void};
use std::fs;
use std::path::PathBuf;

use libloading::Library;

use crate::{Error, Result};

/// A pointer to an object of the library's.
pub type Object = *mut c_void;
type Bytes = *const c_char;
/// A pointer to which the library writes a message; the caller frees it with `free`.
pub type Problem = *mut *mut c_char;

macro_rules! interface {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that are used, by their names without `rocksdb_`.
        #[expect(non_snake_case, reason = "the names are RocksDB's")]
        pub struct Interface {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// The library that has the functions.
            _library: Library,
        }

        impl Interface {
            fn of(library: Library) -> std::result::Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the types are those of rocksdb/c.h, which only ever adds functions.
                    $($name: unsafe { *library.get(concat!("rocksdb_", stringify!($name)))? },)*
                    _library: library,
                })
            }
        }
    };
}

interface! {
    open: fn(Object, Bytes, Problem) -> Object;
    close: fn(Object);
    options_create: fn() -> Object;
    options_destroy: fn(Object);
    options_set_create_if_missing: fn(Object, c_uchar);
    options_set_write_buffer_size: fn(Object, usize);
    options_set_max_write_buffer_number: fn(Object, c_int);
    options_set_use_direct_reads: fn(Object, c_uchar);
    options_set_use_direct_io_for_flush_and_compaction: fn(Object, c_uchar);
    options_set_compression: fn(Object, c_int);
    options_set_max_background_jobs: fn(Object, c_int);
    options_set_block_based_table_factory: fn(Object, Object);
    block_based_options_create: fn() -> Object;
    block_based_options_destroy: fn(Object);
    block_based_options_set_block_cache: fn(Object, Object);
    block_based_options_set_cache_index_and_filter_blocks: fn(Object, c_uchar);
    block_based_options_set_index_type: fn(Object, c_int);
    block_based_options_set_partition_filters: fn(Object, c_uchar);
    block_based_options_set_pin_l0_filter_and_index_blocks_in_cache: fn(Object, c_uchar);
    block_based_options_set_filter_policy: fn(Object, Object);
    filterpolicy_create_bloom_full: fn(c_double) -> Object;
    cache_create_lru: fn(usize) -> Object;
    cache_destroy: fn(Object);
    readoptions_create: fn() -> Object;
    readoptions_destroy: fn(Object);
    readoptions_set_readahead_size: fn(Object, usize);
    writeoptions_create: fn() -> Object;
    writeoptions_destroy: fn(Object);
    writeoptions_set_sync: fn(Object, c_uchar);
    writeoptions_disable_WAL: fn(Object, c_int);
    flushoptions_create: fn() -> Object;
    flushoptions_destroy: fn(Object);
    flush: fn(Object, Object, Problem);
    compact_range: fn(Object, Bytes, usize, Bytes, usize);
    get_pinned: fn(Object, Object, Bytes, usize, Problem) -> Object;
    multi_get: fn(Object, Object, usize, *const Bytes, *const usize, *mut *mut c_char, *mut usize, *mut *mut c_char);
    pinnableslice_value: fn(Object, *mut usize) -> Bytes;
    pinnableslice_destroy: fn(Object);
    put: fn(Object, Object, Bytes, usize, Bytes, usize, Problem);
    create_iterator: fn(Object, Object) -> Object;
    iter_destroy: fn(Object);
    iter_seek: fn(Object, Bytes, usize);
    iter_valid: fn(Object) -> c_uchar;
    iter_next: fn(Object);
    iter_key: fn(Object, *mut usize) -> Bytes;
    iter_value: fn(Object, *mut usize) -> Bytes;
    iter_get_error: fn(Object, Problem);
    writebatch_create: fn() -> Object;
    writebatch_destroy: fn(Object);
    writebatch_clear: fn(Object);
    writebatch_put: fn(Object, Bytes, usize, Bytes, usize);
    write: fn(Object, Object, Object, Problem);
    writebatch_wi_create: fn(usize, c_uchar) -> Object;
    writebatch_wi_destroy: fn(Object);
    writebatch_wi_clear: fn(Object);
    writebatch_wi_put: fn(Object, Bytes, usize, Bytes, usize);
    writebatch_wi_delete: fn(Object, Bytes, usize);
    writebatch_wi_get_from_batch_and_db: fn(Object, Object, Object, Bytes, usize, *mut usize, Problem) -> *mut c_char;
    writebatch_wi_create_iterator_with_base: fn(Object, Object) -> Object;
    write_writebatch_wi: fn(Object, Object, Object, Problem);
    free: fn(*mut c_void);
}

/// Finds and loads the library.
pub fn load() -> Result<Interface> {
    let mut names = vec![PathBuf::from("librocksdb.so")];
    for directory in [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    ] {
        let files = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_it = |path: &PathBuf| {
            path.file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.starts_with("librocksdb.so"))
        };
        names.extend(files.filter(is_it));
    }
    for name in names {
        // SAFETY: the library only initialises itself when it is loaded.
        let Ok(library) = (unsafe { Library::new(&name) }) else { continue };
        if let Ok(interface) = Interface::of(library) {
            return Ok(interface);
        }
    }
    Err(Error::Missing {
        what: "no librocksdb with the functions that are needed".to_owned(),
        hint: "install the package librocksdb-dev (`make setup` does)",
    })
}
