//! The guide and other pages that are too long for the documentation of an item.

#[doc = include_str!("algorithms.md")]
pub mod algorithms {}
#[doc = include_str!("capacity.md")]
pub mod capacity {}
#[doc = include_str!("command.md")]
pub mod command {}
#[doc = include_str!("comparison.md")]
pub mod comparison {}
#[doc = include_str!("compile_errors.md")]
pub mod compile_errors {}
#[doc = include_str!("engines.md")]
pub mod engines {}
#[doc = include_str!("failure.md")]
pub mod failure {}
#[doc = include_str!("guide.md")]
pub mod guide {}
#[doc = include_str!("keys.md")]
pub mod keys {}
#[doc = include_str!("migration.md")]
pub mod migration {}
#[doc = include_str!("non_goals.md")]
pub mod non_goals {}
#[cfg(feature = "metrics")]
#[doc = include_str!("operations.md")]
pub mod operations {}
#[doc = include_str!("recipes.md")]
pub mod recipes {}
#[doc = include_str!("redisson.md")]
pub mod redisson {}
#[doc = include_str!("stacks.md")]
pub mod stacks {}
#[doc = include_str!("tuning.md")]
pub mod tuning {}
/// What a program that writes code by this crate reads first: its snippets run as those of a page.
#[cfg(doctest)]
#[doc = include_str!("../../llms.txt")]
pub mod llms {}
