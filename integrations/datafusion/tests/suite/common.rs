//! Things that the tests share: TPC-H tables in Parquet files, services, and sessions.

#![allow(dead_code)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_datafusion::{Options, Scans, Service, tables};
use bedplate_scan::Daemon;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::error::ArrowError;
use datafusion::prelude::{SessionConfig, SessionContext};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use rustix::fs::{Advice, fadvise};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

const SCALE: f64 = 0.05;
/// Files of `lineitem`.
pub const PARTS: i32 = 2;

/// How long files of these tests must not have been changed before a service reads them.
const SETTLING: Duration = Duration::from_millis(500);

/// A service that takes such files.
pub fn service() -> Service {
    Service::builder().settling_time(SETTLING).build().unwrap()
}

/// The service of these tests reads small files, too.
pub const SMALL: Options = Options { min_file_bytes: 1, read_ahead_bytes: 32 << 20 };

/// Tests that care about what is in the page cache run one at a time.
pub async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    ALONE.lock().await
}

/// A folder with the tables, which is made once, on the disk of the build.
pub fn tpch() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tpch-0.05");
    std::fs::create_dir_all(&folder).unwrap();
    // Tests of several processes may begin at the same time.
    let lock = File::create(folder.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    if !folder.join("complete").exists() {
        make(&folder);
        File::create(folder.join("complete")).unwrap();
        settle();
    }
    folder
}

/// Waits until what was changed before is old enough for the service.
pub fn settle() {
    std::thread::sleep(SETTLING + Duration::from_millis(100));
}

fn make(folder: &Path) {
    let one = |name: &str| folder.join(format!("{name}.parquet"));
    std::fs::create_dir_all(folder.join("lineitem")).unwrap();
    for part in 1..=PARTS {
        let rows = LineItemArrow::new(LineItemGenerator::new(SCALE, part, PARTS)).with_batch_size(10_000);
        write(&folder.join(format!("lineitem/{part}.parquet")), rows, 30_000, Compression::SNAPPY);
    }
    write(&one("orders"), OrderArrow::new(OrderGenerator::new(SCALE, 1, 1)), 20_000, Compression::SNAPPY);
    write(
        &one("customer"),
        CustomerArrow::new(CustomerGenerator::new(SCALE, 1, 1)),
        3000,
        Compression::SNAPPY,
    );
    write(&one("part"), PartArrow::new(PartGenerator::new(SCALE, 1, 1)), 3000, Compression::SNAPPY);
    write(
        &one("partsupp"),
        PartSuppArrow::new(PartSuppGenerator::new(SCALE, 1, 1)),
        9000,
        Compression::SNAPPY,
    );
    write(
        &one("supplier"),
        SupplierArrow::new(SupplierGenerator::new(SCALE, 1, 1)),
        1000,
        Compression::SNAPPY,
    );
    write(&one("nation"), NationArrow::new(NationGenerator::new(SCALE, 1, 1)), 10, Compression::SNAPPY);
    write(&one("region"), RegionArrow::new(RegionGenerator::new(SCALE, 1, 1)), 10, Compression::SNAPPY);
}

/// Writes batches with so many rows in each row group.
pub fn write(
    path: &Path,
    batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>,
    group_rows: usize,
    compression: Compression,
) {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group_rows))
        .set_compression(compression)
        .build();
    let mut batches = batches.map(Result::unwrap).peekable();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batches.peek().unwrap().schema(), Some(properties)).unwrap();
    batches.for_each(|batch| writer.write(&batch).unwrap());
    writer.close().unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

/// Why the service does not read files of the build's disk, if it does not.
pub fn refusal(service: &Service, folder: &Path) -> Option<String> {
    let error = service.reader(folder.join("orders.parquet").as_path()).err()?;
    println!("skipped: the service does not read files of the build's disk: {error}");
    Some(error.to_string())
}

/// All files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files
}

/// Takes the files of a folder out of the page cache.
pub fn drop_pages(folder: &Path) {
    for file in files(folder) {
        fadvise(File::open(file).unwrap(), 0, None, Advice::DontNeed).unwrap();
    }
}

/// Reads the files of a folder into the page cache.
pub fn read_pages(folder: &Path) {
    files(folder).iter().for_each(|file| drop(std::fs::read(file).unwrap()));
}

/// A session with the tables of a folder.
pub async fn session(folder: &Path, partitions: usize, scans: Option<&Scans>) -> SessionContext {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(partitions));
    if let Some(scans) = scans {
        scans.install(&context);
    }
    tables::register(&context, folder).await.unwrap();
    context
}

pub type Rows = Vec<Vec<Option<String>>>;

/// The rows of a query.
pub async fn rows(context: &SessionContext, query: &str) -> Rows {
    let batches = context.sql(query).await.unwrap().collect().await.unwrap();
    tables::rows(&batches).unwrap()
}

/// Where the queries are. The tests of Ballista have this module, too, one folder below.
fn query_folder() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    [here.join("queries"), here.join("../queries")].into_iter().find(|folder| folder.is_dir()).unwrap()
}

/// The file of a query.
pub fn query_file(name: &str) -> PathBuf {
    query_folder().join(format!("{name}.sql"))
}

/// The 22 queries, by their names.
pub fn queries() -> Vec<(String, String)> {
    let folder = query_folder();
    let mut queries: Vec<_> = files(&folder)
        .iter()
        .map(|path| {
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(path).unwrap())
        })
        .collect();
    queries.sort();
    assert_eq!(queries.len(), 22);
    queries
}

/// A daemon in a thread of this process, which ends with this object.
pub struct Served {
    pub socket: PathBuf,
    stopper: bedplate_scan::Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
    _place: tempfile::TempDir,
}

impl Served {
    pub fn start() -> Self {
        let place = tempfile::tempdir().unwrap();
        let options = bedplate_scan::Options::default();
        let daemon = Daemon::bind(service(), place.path().join("socket"), &options).unwrap();
        let (socket, stopper) = (daemon.path(), daemon.stopper());
        let thread = std::thread::spawn(move || daemon.run().unwrap());
        Self { socket, stopper, thread: Some(thread), _place: place }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stopper.stop();
        let _ = self.thread.take().unwrap().join();
    }
}

/// Scans by a service in this process.
pub fn scans(options: Options) -> Scans {
    Scans::with_options(service(), options, []).unwrap()
}
