//! How the threads of an export are set up.

use std::sync::Arc;
use std::time::Duration;

use ring3_reactor::Pool;
use ring3_stats::Segment;

use super::load::{Engine, Limits};
use super::priority::Priority;
use super::vhost::Workers;

/// What moves packets, and when.
#[derive(Clone, Default)]
pub struct EngineSettings {
    /// Which, as far as it can be had.
    pub engine: Engine,
    /// When [`Engine::Auto`] takes which.
    pub limits: Limits,
    /// Where vhost-net's workers come from.
    pub workers: Workers,
    /// How soon the threads run that move packets. A process in its sandbox may not even ask for
    /// more than [`Priority::Ordinary`].
    pub priority: Priority,
}

/// How the threads of an export work.
#[derive(Clone)]
pub struct TapThreadOptions {
    /// How long a queue polls at most before it sleeps.
    pub poll: Duration,
    /// What moves packets between the card's memory and the kernel.
    pub engine: EngineSettings,
    /// Whether received TCP is put together before the kernel has it.
    pub joins: bool,
    /// Where they have their rings from: one for each queue, and one more.
    pub rings: Pool,
    /// Where they show that they live: a part for each queue, and one more.
    pub segment: Arc<Segment>,
}
