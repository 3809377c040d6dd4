//! Small limits, batches that are held, streams that are dropped, and many queries at a time.

use std::sync::Arc;

use crate::common::{Served, alone, drop_pages, queries, refusal, rows, scans, service, session, tpch};
use bedplate_datafusion::{Options, Scans, Service};
use datafusion::arrow::array::{ArrayRef, RecordBatch, StringViewArray};
use datafusion::physical_plan::execute_stream;
use futures::StreamExt;
use parquet::basic::Compression;

const Q6: &str = include_str!("../../queries/q06.sql");

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_the_same_with_little_read_ahead() {
    let _alone = alone().await;
    let folder = tpch();
    let plain = session(&folder, 2, None).await;
    for read_ahead_bytes in [0, 1, 100_000] {
        let scans = scans(Options { read_ahead_bytes, ..crate::common::SMALL });
        if refusal(scans.service(), &folder).is_some() {
            return;
        }
        let served = session(&folder, 2, Some(&scans)).await;
        for (name, query) in queries().into_iter().step_by(4) {
            drop_pages(&folder);
            assert_eq!(rows(&served, &query).await, rows(&plain, &query).await, "{name}");
        }
        assert!(scans.statistics().served_bytes > 0);
    }
}

/// The arrays of uncompressed strings are views of the very bytes that were read. All of them are held until the scan ends, so
/// they are more than the readers may hold.
#[tokio::test(flavor = "multi_thread")]
async fn batches_that_are_held_do_not_stop_a_scan() {
    let _alone = alone().await;
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let batch = |number: usize| {
        let text = |column: usize| -> ArrayRef {
            let text = (0..4000)
                .map(|row| format!("{number} {column} {row} a text that is not kept inside of a view"));
            Arc::new(StringViewArray::from_iter_values(text))
        };
        RecordBatch::try_from_iter((0..8).map(|at| (format!("c{at}"), text(at))))
    };
    crate::common::write(
        &own.path().join("texts.parquet"),
        (0..40).map(batch),
        4000,
        Compression::UNCOMPRESSED,
    );
    crate::common::settle();
    drop_pages(own.path());
    let scans = scans(crate::common::SMALL);
    if let Err(error) = scans.service().reader(own.path().join("texts.parquet").as_path()) {
        println!("skipped: {error}");
        return;
    }
    let context = session(own.path(), 1, Some(&scans)).await;
    let plan = context.sql("SELECT * FROM texts").await.unwrap().create_physical_plan().await.unwrap();
    let mut stream = execute_stream(plan, context.task_ctx()).unwrap();
    let mut held = Vec::new();
    while let Some(batch) = stream.next().await {
        held.push(batch.unwrap());
    }
    let all = bedplate_datafusion::tables::rows(&held).unwrap();
    assert_eq!(all.len(), 40 * 4000);
    for (at, row) in all.iter().enumerate() {
        for (column, value) in row.iter().enumerate() {
            let (number, row) = (at / 4000, at % 4000);
            let want = format!("{number} {column} {row} a text that is not kept inside of a view");
            assert_eq!(value.as_ref(), Some(&want));
        }
    }
    let statistics = scans.statistics();
    assert!(statistics.served_bytes > 0 && statistics.fallbacks == 0, "{statistics:?}");
    // Another scan of the file has readers while the batches are held.
    let query = "SELECT count(*) FROM texts WHERE c0 LIKE '%7 a text%'";
    let want = rows(&session(own.path(), 1, None).await, query).await;
    drop_pages(own.path());
    assert_eq!(rows(&context, query).await, want);
    assert!(scans.statistics().served_streams > statistics.served_streams);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_below_the_minimum_are_left_to_the_default_reader() {
    let _alone = alone().await;
    let folder = tpch();
    if refusal(&service(), &folder).is_some() {
        return;
    }
    let size = std::fs::metadata(folder.join("orders.parquet")).unwrap().len();
    let default = Options::default();
    assert!(size < default.min_file_bytes, "the table is small");
    for (options, is_served) in [
        (default, false),
        (Options { min_file_bytes: size + 1, ..default }, false),
        (Options { min_file_bytes: size, ..default }, true),
    ] {
        let scans = scans(options);
        let context = session(&folder, 1, Some(&scans)).await;
        drop_pages(&folder);
        rows(&context, "SELECT sum(o_totalprice) FROM orders").await;
        let statistics = scans.statistics();
        assert_eq!(statistics.served_bytes > 0, is_served, "{options:?}: {statistics:?}");
        assert_eq!(statistics.default_streams == 0, is_served, "{options:?}: {statistics:?}");
    }
}

async fn cancel(scans: &Scans) {
    let folder = tpch();
    if refusal(scans.service(), &folder).is_some() {
        return;
    }
    let context = session(&folder, 2, Some(scans)).await;
    drop_pages(&folder);
    // A file has 63 readers at most, so streams that left theirs would have no more.
    for round in 0..100 {
        let frame = context.sql("SELECT * FROM lineitem").await.unwrap();
        let mut stream = frame.execute_stream().await.unwrap();
        for _ in 0..round % 3 {
            stream.next().await.unwrap().unwrap();
        }
        if round % 10 == 9 {
            // In the middle of a read.
            let _ = tokio::time::timeout(std::time::Duration::from_micros(round * 20), stream.next()).await;
        }
        drop(stream);
    }
    let before = scans.statistics();
    let got = rows(&context, Q6).await;
    let after = scans.statistics();
    assert!(after.served_streams > before.served_streams, "{after:?}");
    assert_eq!((after.default_streams, after.fallbacks), (0, 0));
    assert_eq!(got, rows(&session(&folder, 2, None).await, Q6).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_dropped_leave_nothing_held() {
    let _alone = alone().await;
    cancel(&scans(crate::common::SMALL)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_dropped_leave_nothing_held_at_a_daemon() {
    let _alone = alone().await;
    let daemon = Served::start();
    let service = Service::connect(&daemon.socket).unwrap();
    cancel(&Scans::with_options(service, crate::common::SMALL, []).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_queries_at_a_time_have_the_same_rows_and_share_what_is_read() {
    let _alone = alone().await;
    let folder = tpch();
    let scans = scans(crate::common::SMALL);
    if refusal(scans.service(), &folder).is_some() {
        return;
    }
    drop_pages(&folder);
    let context = session(&folder, 2, Some(&scans)).await;
    let want = rows(&context, Q6).await;
    let one = scans.service().statistics().bytes_read;
    assert!(one > 0);
    // Another service has nothing in its memory.
    let scans = crate::common::scans(crate::common::SMALL);
    let context = session(&folder, 2, Some(&scans)).await;
    let tasks: Vec<_> = (0..12)
        .map(|_| {
            let context = context.clone();
            tokio::spawn(async move { rows(&context, Q6).await })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), want);
    }
    let all = scans.service().statistics().bytes_read;
    println!("12 queries read {all} bytes, one reads {one}");
    assert!(all < 4 * one, "12 queries read {all} bytes, one reads {one}");
    // Different queries, which have different columns in common.
    let plain = session(&folder, 2, None).await;
    let tasks: Vec<_> = queries()
        .into_iter()
        .map(|(name, query)| {
            let (context, plain) = (context.clone(), plain.clone());
            tokio::spawn(async move {
                assert_eq!(rows(&context, &query).await, rows(&plain, &query).await, "{name}");
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}
