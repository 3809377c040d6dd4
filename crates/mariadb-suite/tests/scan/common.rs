//! Servers, tables in every format, and the library's statistics.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_mariadb_suite::{Installation, Launch, Preload, Server, Settings, Statistics, programs};
use rustix::fs::{Advice, fadvise};

/// The smallest file that is served.
pub const MINIMUM_BYTES: u64 = 1 << 20;

/// The formats of tables, each with the text behind the columns in `create table`.
pub const FORMATS: [(&str, &str); 5] = [
    ("myisam_fixed", "engine=MyISAM row_format=fixed"),
    ("myisam_dynamic", "engine=MyISAM row_format=dynamic"),
    ("aria_page", "engine=Aria transactional=1 row_format=page"),
    ("aria_fixed", "engine=Aria transactional=0 row_format=fixed"),
    ("aria_dynamic", "engine=Aria transactional=0 row_format=dynamic"),
];

/// The table's file that has its rows.
pub fn data_file(server: &Server, table: &str) -> PathBuf {
    server.table_file("test", table, if table.starts_with("myisam") { "MYD" } else { "MAD" })
}

/// The installation; prints a message and returns `None` if there is none.
pub fn installation() -> Option<Installation> {
    Installation::find().map_err(|reason| eprintln!("skipped: {reason}")).ok()
}

/// Whether all servers are to run plain.
pub fn is_stock() -> bool {
    std::env::var_os("BEDPLATE_TEST_STOCK").is_some_and(|value| value == "1")
}

/// Settings for small tests. Their files are in a folder of cargo's, because the temporary folder may be in memory.
pub fn settings() -> Settings {
    Settings {
        options: vec!["--key-buffer-size=4M".into(), "--aria-pagecache-buffer-size=1M".into()],
        place: Some(target()),
    }
}

/// A folder for files of tests.
pub fn target() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs the server under the library, with its statistics in a file of the server's folder. The library also serves files that
/// were just changed, and files that the page cache has.
pub fn preload(server: &Server) -> Launch {
    launch(Preload {
        settling_time_ms: Some(0),
        environment: vec![("BEDPLATE_SCAN_RESIDENT".into(), "serve".into())],
        ..smaller_minimum(server)
    })
}

/// Does the same, but the library leaves files to the kernel that the page cache has, or that were changed within
/// [`SETTLING_TIME`].
pub fn preload_settled(server: &Server) -> Launch {
    launch(Preload { settling_time_ms: Some(SETTLING_TIME.as_millis() as u64), ..smaller_minimum(server) })
}

/// Does the same as [`preload_settled`], with the default smallest file.
pub fn preload_by_default(server: &Server) -> Launch {
    launch(Preload {
        minimum_bytes: None,
        settling_time_ms: Some(SETTLING_TIME.as_millis() as u64),
        ..smaller_minimum(server)
    })
}

fn launch(preload: Preload) -> Launch {
    if is_stock() { Launch::Plain } else { Launch::Scan(preload) }
}

fn smaller_minimum(server: &Server) -> Preload {
    Preload {
        program: program(),
        memory_bytes: Some(1 << 30),
        minimum_bytes: Some(MINIMUM_BYTES),
        statistics: Some(statistics_file(server)),
        ..Preload::default()
    }
}

/// Time for which a file must be unchanged before [`preload_settled`] serves it. It is short, so that tests do not wait.
pub const SETTLING_TIME: Duration = Duration::from_secs(1);

/// The command, beside its library.
pub fn program() -> PathBuf {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let build = || {
        programs::build(&["scan-preload"]).unwrap();
        programs::bedplate().unwrap()
    };
    BUILT.get_or_init(build).clone()
}

/// The file for the statistics of [`preload`].
pub fn statistics_file(server: &Server) -> PathBuf {
    server.path().join("statistics")
}

/// The library's counters in servers that have ended.
pub fn statistics(server: &Server) -> Vec<Statistics> {
    Statistics::read(&statistics_file(server)).unwrap()
}

/// Makes a server and starts it by `launch`.
pub fn start(installation: &Installation, launch: impl Fn(&Server) -> Launch) -> Server {
    let mut server = Server::create(installation, &settings()).unwrap();
    server.start(&launch(&server)).unwrap();
    server
}

/// Syncs the files below a folder and takes them out of the page cache.
pub fn forget(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => forget(&path),
            false => {
                // A file that the server has just removed needs no care.
                let Ok(file) = File::open(&path) else { continue };
                file.sync_all().unwrap();
                fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            }
        }
    }
}
