//! Scans by a daemon whose connections end.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Rows, SMALL, Served, alone, drop_pages, session, settle, write};
use bedplate_datafusion::{Scans, Service, tables};
use datafusion::arrow::array::{ArrayRef, RecordBatch, StringViewArray};
use datafusion::physical_plan::execute_stream;
use futures::StreamExt;
use parquet::basic::Compression;
use rustix::net::{Shutdown, SocketAddrUnix, getpeername, shutdown};

const BATCHES: usize = 40;
const ROWS: usize = 4000;

/// Ends all connections of this process to a daemon, and waits until the daemon has noticed.
fn disconnect(socket: &Path) {
    let address = SocketAddrUnix::new(socket).unwrap();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let number = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: a number that is no descriptor any more is an error of the calls below.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let peer = getpeername(descriptor).ok().flatten().and_then(|peer| peer.try_into().ok());
        if peer == Some(address.clone()) {
            shutdown(descriptor, Shutdown::Both).unwrap();
        }
    }
    std::thread::sleep(Duration::from_millis(500));
}

/// Reads so many ranges of a file that the daemon has used all memory of the file for them.
fn use_memory(socket: &Path, file: &Path) {
    let reader = Service::connect(socket).unwrap().reader(file).unwrap();
    let (step, len) = (64 << 10, 1 << 20);
    for start in (0..reader.version().size() - len as u64).step_by(step) {
        drop(reader.fetch(start, len).unwrap().wait().unwrap());
    }
}

fn text(batch: usize, column: usize, row: usize) -> String {
    format!("{batch} {column} {row} a text that is not kept inside of a view")
}

fn want(batches: usize) -> Rows {
    let row = |at: usize| (0..8).map(|column| Some(text(at / ROWS, column, at % ROWS))).collect();
    (0..batches * ROWS).map(row).collect()
}

/// The arrays of uncompressed strings are views of the bytes that the decoder got. A daemon gives the memory of its ranges to others when
/// a connection has ended.
#[tokio::test(flavor = "multi_thread")]
async fn batches_stay_as_they_are_when_the_connection_to_the_daemon_ends() {
    let _alone = alone().await;
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = own.path().join("texts.parquet");
    let batch = |batch: usize| {
        let column = |column: usize| -> ArrayRef {
            let texts = (0..ROWS).map(|row| text(batch, column, row));
            Arc::new(StringViewArray::from_iter_values(texts))
        };
        RecordBatch::try_from_iter((0..8).map(|at| (format!("c{at}"), column(at))))
    };
    write(&file, (0..BATCHES).map(batch), ROWS, Compression::UNCOMPRESSED);
    settle();
    drop_pages(own.path());
    let daemon = Served::start();
    let service = Service::connect(&daemon.socket).unwrap();
    if let Err(error) = service.reader(file.as_path()) {
        println!("skipped: {error}");
        return;
    }
    let scans = Scans::with_options(service, SMALL, []).unwrap();
    let context = session(own.path(), 1, Some(&scans)).await;
    let plan = context.sql("SELECT * FROM texts").await.unwrap().create_physical_plan().await.unwrap();
    let mut stream = execute_stream(plan, context.task_ctx()).unwrap();
    let mut held = Vec::new();
    while held.iter().map(RecordBatch::num_rows).sum::<usize>() < 4 * ROWS {
        held.push(stream.next().await.unwrap().unwrap());
    }
    let statistics = scans.statistics();
    assert!(statistics.served_bytes > 0 && statistics.fallbacks == 0, "{statistics:?}");
    disconnect(&daemon.socket);
    use_memory(&daemon.socket, &file);
    let rows = tables::rows(&held).unwrap();
    assert!(rows == want(BATCHES)[..rows.len()], "rows have changed");
    // The default reader goes on.
    while let Some(batch) = stream.next().await {
        held.push(batch.unwrap());
    }
    assert!(tables::rows(&held).unwrap() == want(BATCHES));
    assert_eq!(scans.statistics().fallbacks, 1);
}
