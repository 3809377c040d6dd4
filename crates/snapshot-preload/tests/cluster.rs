//! A Redis Cluster of the distribution's servers, all under the library with the engine `remap`. It is resharded and fails
//! over while clients write and read and its masters save. Nothing that was acknowledged is lost, except what Redis itself
//! loses in a failover: writes that the replica does not have yet.

mod common;
mod cluster {
    pub mod load;
    pub mod nodes;
}

use std::path::Path;
use std::time::{Duration, Instant};

use cluster::load::{Load, Reads, name};
use cluster::nodes::Cluster;
use common::{bgsave, child_of, incomplete, set_save_delay};

/// Number of slots that are moved, of 5461 of the master that has them.
const SLOTS: u32 = 600;

#[test]
fn a_cluster_saves_reshards_and_fails_over_under_load() {
    let mut cluster = Cluster::start();
    let load = Load::new(cluster.addresses());
    load.run(Reads::Acknowledged, || load.write_all());

    let [from, to] = cluster.masters()[..2] else { panic!("no masters") };
    let before = slots_moved(&cluster, &load, from, to);
    println!("{SLOTS} slots were moved; {} reads", load.reads());
    assert_eq!(load.contents(), load.acknowledged());
    check_images(&cluster, &load, &before);

    let (killed, replica) = (to, cluster.replica_of(to));
    let lost = failed_over(&mut cluster, &load, killed, replica);
    println!("{lost} keys have lost writes that the replica did not have yet; {} reads", load.reads());

    // The new master updates the old one with a snapshot.
    cluster.restart(killed);
    let before = load.run(Reads::Acknowledged, || {
        cluster.wait_until_agreed();
        load.write_all();
        let before = load.acknowledged();
        cluster.save();
        before
    });
    assert_eq!(load.contents(), load.acknowledged());
    assert!(cluster.masters().contains(&replica));
    let keys = check_images(&cluster, &load, &before);
    assert_eq!(keys, Load::ALL, "every key is in the image of one master");
    cluster.wait_for_replicas();

    let masters = cluster.masters();
    for (node, statistics) in cluster.stop().iter().enumerate() {
        println!("node {node}: {statistics:?}");
        assert_eq!((incomplete(statistics), statistics["active"]), (0, 0), "node {node}: {statistics:?}");
        if masters.contains(&node) {
            assert!(statistics["instantaneous"] > 0, "node {node}: {statistics:?}");
        }
    }
}

/// Moves slots from a master to another one under load, while all masters save repeatedly. Returns the numbers that were
/// acknowledged before the latest save.
fn slots_moved(cluster: &Cluster, load: &Load, from: usize, to: usize) -> Vec<u64> {
    load.run(Reads::Acknowledged, || {
        let mut resharding = cluster.begin_resharding(from, to, SLOTS);
        let mut before = Vec::new();
        let mut saves = 0;
        while !resharding.has_ended() {
            before = load.acknowledged();
            cluster.save();
            saves += 1;
        }
        assert!(saves > 0, "resharding ended before the masters began to save");
        println!("the masters saved {saves} times meanwhile");
        before
    })
}

/// Checks the files that the masters have saved, each in a server without the library, and returns the number of their keys.
fn check_images(cluster: &Cluster, load: &Load, before: &[u64]) -> usize {
    let masters = cluster.masters();
    let keys = masters.iter().map(|node| {
        let node = &cluster.nodes[*node];
        let stock = node.server.stock(node.folder.path(), &[]);
        let keys = load.check_image(&mut stock.connect(), before);
        assert!(keys > 0, "an image without keys");
        keys
    });
    keys.sum()
}

/// Kills a master under load while it saves, and waits until its replica has replaced it. All writes must exist that were
/// acknowledged before, and those that the other masters acknowledged meanwhile. Returns the number of keys that lost a later
/// write.
fn failed_over(cluster: &mut Cluster, load: &Load, killed: usize, replica: usize) -> usize {
    cluster.wait_for_replicas();
    let names: Vec<_> = (0..Load::ALL).map(name).collect();
    let is_concerned = cluster.nodes[killed].serves(&names);
    assert!(is_concerned.contains(&true) && is_concerned.contains(&false));
    let before = load.acknowledged();
    load.run(Reads::Any, || {
        let server = &cluster.nodes[killed].server;
        let mut connection = server.connect();
        // Saving takes seconds, so that the master is killed meanwhile.
        set_save_delay(&mut connection, 1000);
        bgsave(&mut connection);
        let child = child_of(server);
        cluster.fail_over(killed, replica);
        // A child that outlives its server completes its work.
        let limit = Instant::now() + Duration::from_secs(60);
        while Path::new(&format!("/proc/{child}")).exists() {
            assert!(Instant::now() < limit, "the child {child} of the killed master hangs");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let (contents, after) = (load.contents(), load.acknowledged());
    let mut lost = 0;
    for (key, number) in contents.iter().enumerate() {
        let least = if is_concerned[key] { before[key] } else { after[key] };
        let name = &names[key];
        assert!(
            (least..=after[key]).contains(number),
            "key {name}: {number} is not {least} to {}",
            after[key]
        );
        lost += usize::from(*number < after[key]);
    }
    load.accept(&contents);
    lost
}
