//! TPC-H's queries have the same rows whichever reader reads, cold and warm, in one process and by a daemon.

use crate::common::{Served, alone, drop_pages, queries, read_pages, refusal, rows, scans, session, tpch};
use bedplate_datafusion::{Scans, Service};

/// Runs all queries by the service, cold: what it served, and the rows of DataFusion's own reader.
async fn compare(scans: &Scans, partitions: usize) {
    let folder = tpch();
    if refusal(scans.service(), &folder).is_some() {
        return;
    }
    let (plain, served) =
        (session(&folder, partitions, None).await, session(&folder, partitions, Some(scans)).await);
    for (name, query) in queries() {
        drop_pages(&folder);
        let before = scans.statistics();
        let got = rows(&served, &query).await;
        let after = scans.statistics();
        assert!(after.served_bytes > before.served_bytes, "{name}: {after:?}");
        assert_eq!(after.fallbacks, 0, "{name}");
        assert_eq!(got, rows(&plain, &query).await, "{name}");
        assert!(!got.is_empty() || ["q02", "q20"].contains(&name.as_str()), "{name} has no rows to compare");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_the_same_in_one_process() {
    let _alone = alone().await;
    compare(&scans(crate::common::SMALL), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_the_same_by_a_daemon() {
    let _alone = alone().await;
    let daemon = Served::start();
    let service = Service::connect(&daemon.socket).unwrap();
    compare(&Scans::with_options(service, crate::common::SMALL, []).unwrap(), 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_in_the_page_cache_are_left_to_the_default_reader() {
    let _alone = alone().await;
    // Other tests take files out of the page cache.
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for name in ["orders", "customer", "nation"] {
        let name = format!("{name}.parquet");
        std::fs::copy(tpch().join(&name), own.path().join(&name)).unwrap();
    }
    crate::common::settle();
    let (scans, folder) = (scans(crate::common::SMALL), own.path());
    if refusal(scans.service(), folder).is_some() {
        return;
    }
    let (plain, served) = (session(folder, 2, None).await, session(folder, 2, Some(&scans)).await);
    read_pages(folder);
    let query =
        "SELECT c_mktsegment, count(*), sum(o_totalprice) FROM customer, orders WHERE c_custkey = o_custkey
                 GROUP BY c_mktsegment ORDER BY 1";
    let want = rows(&plain, query).await;
    assert_eq!(rows(&served, query).await, want);
    let warm = scans.statistics();
    assert!(warm.served_bytes == 0 && warm.default_streams > 0, "{warm:?}");
    for file in crate::common::files(folder) {
        std::fs::File::open(file).unwrap().sync_all().unwrap();
    }
    drop_pages(folder);
    assert_eq!(rows(&served, query).await, want);
    assert!(scans.statistics().served_bytes > 0, "{:?}", scans.statistics());
}
