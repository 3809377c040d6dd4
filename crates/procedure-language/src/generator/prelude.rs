//! The beginning of the generated text: the header, and the macros and functions that the program uses.

/// A macro or function of the generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Helper {
    Hidden,
    KeyText,
    ValueInteger,
    ExpiryTime,
    RefuseResult,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Helper {
    /// All of them, each behind those that it needs.
    pub const ALL: [Helper; 10] = [
        Helper::Hidden,
        Helper::KeyText,
        Helper::ValueInteger,
        Helper::ExpiryTime,
        Helper::RefuseResult,
        Helper::Add,
        Helper::Subtract,
        Helper::Multiply,
        Helper::Divide,
        Helper::Remainder,
    ];

    pub fn needs(self) -> &'static [Helper] {
        match self {
            Helper::Add | Helper::Subtract | Helper::Multiply | Helper::Divide | Helper::Remainder => {
                &[Helper::RefuseResult]
            }
            _ => &[],
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Helper::Hidden => HIDDEN,
            Helper::KeyText => KEY_TEXT,
            Helper::ValueInteger => VALUE_INTEGER,
            Helper::ExpiryTime => EXPIRY_TIME,
            Helper::RefuseResult => REFUSE_RESULT,
            Helper::Add => ADD,
            Helper::Subtract => SUBTRACT,
            Helper::Multiply => MULTIPLY,
            Helper::Divide => DIVIDE,
            Helper::Remainder => REMAINDER,
        }
    }
}

/// The beginning of the text.
pub(super) fn beginning(file: &str) -> String {
    // A comment must not end before its end.
    let name: String = file.chars().filter(|c| !c.is_control() && *c != '*').collect();
    format!(
        "/* Made from {name} by `bedplate kv build-procedure`. Variables begin with v_. */\n\
         #include <bedplate/procedure.h>\n\n\
         KDB_LICENSE(\"Dual MIT/GPL\");\n\n\
         #pragma clang diagnostic ignored \"-Wunused-variable\"\n\
         #pragma clang diagnostic ignored \"-Wunused-but-set-variable\"\n\
         #pragma clang diagnostic ignored \"-Wtautological-compare\"\n\
         #pragma clang diagnostic ignored \"-Wincompatible-library-redeclaration\"\n"
    )
}

const HIDDEN: &str = r"/* A number of which the verifier knows nothing, so that it does not follow each path with each number. */
static volatile __u64 generated_zero;
#define HIDDEN(number) ((__s64)((__u64)(number) ^ generated_zero))
";

const KEY_TEXT: &str = r"/* Appends a text to the key. Unlike kdb_key_append_text, it does not check the length: the compiler has added up the parts. */
#define KEY_TEXT(literal)                                                                              \
	({                                                                                             \
		__u32 klen_ = p->io->klen & KDB_KEY_MAX;                                               \
		opaque(klen_);                                                                         \
		__builtin_memcpy(&p->io->key[klen_ & KDB_KEY_MAX], literal, sizeof(literal) - 1);      \
		p->io->klen = klen_ + sizeof(literal) - 1;                                             \
	})
";

const VALUE_INTEGER: &str = r"/* The value as an integer. */
#define VALUE_INTEGER()                                                                                \
	({                                                                                             \
		__s64 number_;                                                                         \
		KDB_TRY(kdb_value_integer(p, &number_));                                               \
		number_;                                                                               \
	})
";

const EXPIRY_TIME: &str = r#"/* A Unix time in milliseconds. */
#define EXPIRY_TIME(time)                                                                              \
	({                                                                                             \
		__s64 time_ = (time);                                                                  \
		if (time_ < 1)                                                                         \
			return kdb_refuse(p, "ERR the time of an expiry is out of range");             \
		time_;                                                                                 \
	})
"#;

const REFUSE_RESULT: &str = r#"#define NO_RESULT "ERR the result of an operation is out of range"

/* Refuses a call because an operation has no result. */
__noinline int generated_refuse_result(struct kdb_call *call)
{
	if (!call)
		return KDB_ERR_STATE;
	__builtin_memcpy(call->text, NO_RESULT, sizeof(NO_RESULT) - 1);
	call->text_len = sizeof(NO_RESULT) - 1;
	return KDB_REFUSED;
}
"#;

const ADD: &str = r"/* The operands have the same sign, and the result has the other one, if it is out of range. */
#define ADD(left, right)                                                                               \
	({                                                                                             \
		__s64 left_ = (left), right_ = (right), result_ = (__u64)left_ + (__u64)right_;        \
		if (((left_ ^ result_) & (right_ ^ result_)) < 0)                                      \
			return generated_refuse_result(p->call);                                       \
		result_;                                                                               \
	})
";

const SUBTRACT: &str = r"#define SUBTRACT(left, right)                                                                          \
	({                                                                                             \
		__s64 left_ = (left), right_ = (right), result_ = (__u64)left_ - (__u64)right_;        \
		if (((left_ ^ right_) & (left_ ^ result_)) < 0)                                        \
			return generated_refuse_result(p->call);                                       \
		result_;                                                                               \
	})
";

const MULTIPLY: &str = r"/* The product is in call->number. */
__noinline int generated_multiply(struct kdb_call *call, __s64 left, __s64 right)
{
	__s64 product = (__u64)left * (__u64)right;

	if (!call)
		return KDB_ERR_STATE;
	/* Else the compiler recognises the check, and makes it with numbers of 128 bits, which eBPF does not have. */
	opaque(product);
	call->number = product;
	if (!left || left == 1)
		return KDB_OK;
	if (left == -1)
		return right == (__s64)(1ull << 63) ? generated_refuse_result(call) : KDB_OK;
	return kdb_divide(product, left) == right ? KDB_OK : generated_refuse_result(call);
}

#define MULTIPLY(left, right)                                                                          \
	({                                                                                             \
		__s64 left_ = (left), right_ = (right);                                                \
		KDB_TRY(generated_multiply(p->call, left_, right_));                                   \
		p->call->number;                                                                       \
	})
";

const DIVIDE: &str = r"/* The quotient is in call->number. */
__noinline int generated_divide(struct kdb_call *call, __s64 left, __s64 right)
{
	if (!call)
		return KDB_ERR_STATE;
	if (!right || (right == -1 && left == (__s64)(1ull << 63)))
		return generated_refuse_result(call);
	call->number = kdb_divide(left, right);
	return KDB_OK;
}

#define DIVIDE(left, right)                                                                            \
	({                                                                                             \
		__s64 left_ = (left), right_ = (right);                                                \
		KDB_TRY(generated_divide(p->call, left_, right_));                                     \
		p->call->number;                                                                       \
	})
";

const REMAINDER: &str = r"/* The remainder is in call->number. */
__noinline int generated_remainder(struct kdb_call *call, __s64 left, __s64 right)
{
	if (!call)
		return KDB_ERR_STATE;
	if (!right)
		return generated_refuse_result(call);
	call->number = right == -1 ? 0 : kdb_remainder(left, right);
	return KDB_OK;
}

#define REMAINDER(left, right)                                                                         \
	({                                                                                             \
		__s64 left_ = (left), right_ = (right);                                                \
		KDB_TRY(generated_remainder(p->call, left_, right_));                                  \
		p->call->number;                                                                       \
	})
";
