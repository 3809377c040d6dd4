//! Intervals of integers: which numbers an expression can be. They show which checks a program does not need.

use crate::syntax::BinaryOperator;

/// The numbers from `low` to `high`, of which there is at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub low: i64,
    pub high: i64,
}

/// The result of an operation on intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub result: Interval,
    /// Whether some operands have no result that is a number.
    pub can_fail: bool,
}

impl Interval {
    pub const ALL: Interval = Interval { low: i64::MIN, high: i64::MAX };

    pub fn only(number: i64) -> Interval {
        Interval { low: number, high: number }
    }

    pub fn contains(self, number: i64) -> bool {
        (self.low..=self.high).contains(&number)
    }

    /// The numbers of an arithmetic operation, or `None` if it fails with all operands.
    pub fn operation(self, operator: BinaryOperator, right: Interval) -> Option<Operation> {
        let (a, b) = ([self.low, self.high].map(i128::from), [right.low, right.high].map(i128::from));
        let corners = |operation: fn(i128, i128) -> i128, divisors: &[i128]| {
            a.iter().flat_map(|a| divisors.iter().map(move |b| operation(*a, *b))).collect::<Vec<_>>()
        };
        let divides_by_zero = right.contains(0);
        let (results, mut can_fail) = match operator {
            BinaryOperator::Add => (corners(|a, b| a + b, &b), false),
            BinaryOperator::Subtract => (corners(|a, b| a - b, &b), false),
            BinaryOperator::Multiply => (corners(|a, b| a * b, &b), false),
            BinaryOperator::Divide => {
                let candidates = [b[0], b[1], -1, 1];
                let divisors: Vec<_> =
                    candidates.into_iter().filter(|d| *d != 0 && (b[0]..=b[1]).contains(d)).collect();
                (corners(|a, b| a / b, &divisors), divides_by_zero)
            }
            BinaryOperator::Remainder => {
                let most = b[0].abs().max(b[1].abs()) - 1;
                if most < 0 {
                    return None;
                }
                // The lowest number has no remainder by -1 in C.
                let fails = self.contains(i64::MIN) && right.contains(-1);
                (vec![a[0].clamp(-most, 0), a[1].clamp(0, most)], divides_by_zero || fails)
            }
            BinaryOperator::Or | BinaryOperator::And | BinaryOperator::Compare(_) => return None,
        };
        let (low, high) = (*results.iter().min()?, *results.iter().max()?);
        let clip = |number: i128| number.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        if high < i64::MIN.into() || low > i64::MAX.into() {
            return None;
        }
        let result = Interval { low: clip(low), high: clip(high) };
        can_fail |= i128::from(result.low) != low || i128::from(result.high) != high;
        Some(Operation { result, can_fail })
    }
}

/// The result of an operation on two numbers, or `None` if there is none.
pub(crate) fn operate(operator: BinaryOperator, left: i64, right: i64) -> Option<i64> {
    match operator {
        BinaryOperator::Add => left.checked_add(right),
        BinaryOperator::Subtract => left.checked_sub(right),
        BinaryOperator::Multiply => left.checked_mul(right),
        BinaryOperator::Divide => left.checked_div(right),
        BinaryOperator::Remainder if right == -1 => Some(0),
        BinaryOperator::Remainder => left.checked_rem(right),
        BinaryOperator::Or | BinaryOperator::And | BinaryOperator::Compare(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OPERATORS: [BinaryOperator; 5] = [
        BinaryOperator::Add,
        BinaryOperator::Subtract,
        BinaryOperator::Multiply,
        BinaryOperator::Divide,
        BinaryOperator::Remainder,
    ];

    fn numbers() -> impl Strategy<Value = i64> {
        prop_oneof![-4..=4i64, any::<i64>(), Just(i64::MIN), Just(i64::MAX)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn an_interval_contains_each_result(
            ends in [numbers(), numbers(), numbers(), numbers()],
            picks in [any::<u64>(), any::<u64>()],
            operator in 0..OPERATORS.len(),
        ) {
            let operator = OPERATORS[operator];
            let interval = |a: i64, b: i64| Interval { low: a.min(b), high: a.max(b) };
            let (left, right) = (interval(ends[0], ends[1]), interval(ends[2], ends[3]));
            let pick = |of: Interval, pick: u64| {
                let count = i128::from(of.high) - i128::from(of.low) + 1;
                (i128::from(of.low) + i128::from(pick) % count) as i64
            };
            for (a, b) in [
                (pick(left, picks[0]), pick(right, picks[1])),
                (left.low, right.low), (left.low, right.high), (left.high, right.low), (left.high, right.high),
            ] {
                match (operate(operator, a, b), left.operation(operator, right)) {
                    (Some(result), Some(operation)) => prop_assert!(operation.result.contains(result)),
                    (Some(_), None) => prop_assert!(false, "the operation can succeed"),
                    (None, Some(operation)) => prop_assert!(operation.can_fail),
                    (None, None) => {}
                }
            }
        }
    }
}
