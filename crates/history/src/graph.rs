//! The direct serialization graph and its cycles.
//!
//! The nodes are the transactions, by their indices, and after them the instants: the ends of transactions in the order
//! of time, which carry the real-time order (see the crate's documentation).

use std::collections::VecDeque;

use crate::history::Key;

/// Why a transaction comes before another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    WriteRead(Key),
    WriteWrite(Key),
    ReadWrite(Key),
    RealTime,
}

/// `from` comes before `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub from: u32,
    pub to: u32,
    pub link: Link,
}

/// A graph with its edges in the order of the nodes at which they begin.
pub(crate) struct Graph {
    /// Number of transactions: nodes with smaller numbers are transactions, the others are instants.
    transactions: usize,
    edges: Vec<Edge>,
    /// For each node the index of its first edge, and at the end the number of edges.
    starts: Vec<u32>,
}

/// Number of nodes from which the search for a short cycle starts at most.
const CYCLE_SEARCHES: usize = 200;

impl Graph {
    pub(crate) fn new(transactions: usize, nodes: usize, mut edges: Vec<Edge>) -> Graph {
        edges.sort_unstable_by_key(|edge| edge.from);
        let mut starts = vec![0; nodes + 1];
        for edge in &edges {
            starts[edge.from as usize + 1] += 1;
        }
        for node in 0..nodes {
            starts[node + 1] += starts[node];
        }
        Graph { transactions, edges, starts }
    }

    fn from(&self, node: usize) -> &[Edge] {
        &self.edges[self.starts[node] as usize..self.starts[node + 1] as usize]
    }

    fn nodes(&self) -> usize {
        self.starts.len() - 1
    }

    /// The nodes that are on cycles: for each node the number of its strongly connected component, or `None` if the node
    /// is alone in it. Only edges that `used` accepts count. (Tarjan's algorithm, without recursion.)
    fn components(&self, used: impl Fn(&Edge) -> bool) -> Vec<Option<u32>> {
        let nodes = self.nodes();
        let (mut component, mut components) = (vec![None; nodes], 0);
        // The order in which nodes were found (0 = not yet), and the earliest node that each one is known to lead to.
        let (mut order, mut earliest, mut found) = (vec![0u32; nodes], vec![0u32; nodes], 0);
        // Nodes that were found and have no component yet.
        let (mut open, mut is_open) = (Vec::new(), vec![false; nodes]);
        // The path from the root to the current node, and the next edge of each node.
        let (mut path, mut next_edge) = (Vec::new(), self.starts.clone());
        for root in 0..nodes {
            if order[root] == 0 {
                path.push(root);
            }
            while let Some(&node) = path.last() {
                if order[node] == 0 {
                    found += 1;
                    (order[node], earliest[node]) = (found, found);
                    open.push(node);
                    is_open[node] = true;
                }
                if next_edge[node] < self.starts[node + 1] {
                    let edge = &self.edges[next_edge[node] as usize];
                    next_edge[node] += 1;
                    let to = edge.to as usize;
                    if used(edge) && order[to] == 0 {
                        path.push(to);
                    } else if used(edge) && is_open[to] {
                        earliest[node] = earliest[node].min(order[to]);
                    }
                    continue;
                }
                path.pop();
                if let Some(&before) = path.last() {
                    earliest[before] = earliest[before].min(earliest[node]);
                }
                if earliest[node] == order[node] {
                    let first = open.iter().rposition(|&member| member == node).expect("it is open");
                    let alone = first + 1 == open.len();
                    for member in open.drain(first..) {
                        is_open[member] = false;
                        component[member] = (!alone).then_some(components);
                    }
                    components += 1;
                }
            }
        }
        component
    }

    /// A cycle with few transactions, without real-time edges if there is such a cycle; `None` if there is no cycle.
    pub(crate) fn cycle(&self) -> Option<Vec<Edge>> {
        let components = self.components(|_| true);
        if components.iter().all(Option::is_none) {
            return None;
        }
        let data = |edge: &Edge| edge.link != Link::RealTime;
        self.short_cycle(&self.components(data), data).or_else(|| self.short_cycle(&components, |_| true))
    }

    /// The shortest of the cycles through some of the transactions that are on cycles.
    fn short_cycle(&self, components: &[Option<u32>], used: impl Fn(&Edge) -> bool) -> Option<Vec<Edge>> {
        let mut best: Option<Vec<Edge>> = None;
        let starts = (0..self.transactions).filter(|&node| components[node].is_some());
        for start in starts.take(CYCLE_SEARCHES) {
            let limit = best.as_ref().map_or(usize::MAX, Vec::len);
            best = self.cycle_through(start, components, &used, limit).or(best);
        }
        best
    }

    /// The shortest cycle through a transaction, if it has fewer than `limit` transactions. Instants do not count, so
    /// nodes that are reached through an instant are visited first.
    fn cycle_through(
        &self,
        start: usize,
        components: &[Option<u32>],
        used: &impl Fn(&Edge) -> bool,
        limit: usize,
    ) -> Option<Vec<Edge>> {
        let mut reached_by: Vec<Option<Edge>> = vec![None; self.nodes()];
        let mut queue = VecDeque::from([(start, 0)]);
        while let Some((node, length)) = queue.pop_front() {
            if length + 1 >= limit {
                continue;
            }
            for edge in self.from(node).iter().filter(|edge| used(edge)) {
                let to = edge.to as usize;
                if to == start {
                    return Some(self.path(start, *edge, &reached_by));
                }
                if components[to] != components[start] || reached_by[to].is_some() {
                    continue;
                }
                reached_by[to] = Some(*edge);
                if to < self.transactions {
                    queue.push_back((to, length + 1));
                } else {
                    queue.push_front((to, length));
                }
            }
        }
        None
    }

    /// The cycle that `last` closes, with one edge for each path through instants.
    fn path(&self, start: usize, last: Edge, reached_by: &[Option<Edge>]) -> Vec<Edge> {
        let mut edges = Vec::new();
        let mut edge = last;
        loop {
            let to = edge.to;
            while edge.from as usize >= self.transactions {
                edge = reached_by[edge.from as usize].expect("it was reached");
            }
            edges.push(Edge { to, ..edge });
            if edge.from as usize == start {
                edges.reverse();
                return edges;
            }
            edge = reached_by[edge.from as usize].expect("it was reached");
        }
    }
}
