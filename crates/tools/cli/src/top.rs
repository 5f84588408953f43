//! `ring3 top`: what supervised devices do, once a second.

mod rates;
mod screen;
#[cfg(test)]
mod tests;

use std::io::{IsTerminal, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ring3_control::admin::{Command, Reply, SOCKET};
use ring3_control::status::DeviceStatus;
use serde_json::json;

use crate::admin::Client;
use rates::{Rates, rates};
use screen::{Screen, Wish};

/// How long `ring3d` may take to answer a look.
const LOOK: Duration = Duration::from_secs(5);
/// How long a restart may take: a device that does not come back is given up before.
const RESTART: Duration = Duration::from_secs(300);

/// Options of `ring3 top`.
#[derive(clap::Args)]
pub struct Args {
    /// Seconds between two updates, from 0.1 to 3600.
    #[arg(long, short = 'd', default_value = "1", value_parser = seconds)]
    every: Duration,
    /// Print one update as text, and end.
    #[arg(long)]
    once: bool,
    /// Print one JSON object per update, one per line.
    #[arg(long)]
    json: bool,
    /// The socket of ring3d.
    #[arg(long, default_value = SOCKET, value_name = "PATH")]
    socket: PathBuf,
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give seconds between 0.1 and 3600".into()),
    }
}

/// Shows a screen where there is one, and else prints.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut looks = Looks::new(&args.socket)?;
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if args.once || args.json || dumb || !stdout().is_terminal() || !stdin().is_terminal() {
        return print(args, &mut looks);
    }
    let mut terminal = ratatui::try_init().context("taking the terminal; --once prints instead")?;
    let shown = show(args, &mut looks, &mut terminal);
    ratatui::restore();
    shown.map(|()| ExitCode::SUCCESS)
}

/// Looks at all devices, one after the other.
struct Looks {
    socket: PathBuf,
    link: Option<Client>,
    last: (Instant, Vec<DeviceStatus>),
}

impl Looks {
    /// The first, with which later ones are compared.
    fn new(socket: &Path) -> Result<Self> {
        let link = Client::within(socket, LOOK)?;
        let last = (Instant::now(), link.status()?);
        Ok(Self { socket: socket.to_owned(), link: Some(link), last })
    }

    /// What has happened since the last one. After an error, the next one asks anew.
    fn next(&mut self) -> Result<Vec<Rates>> {
        let link = match self.link.take() {
            Some(link) => link,
            None => Client::within(&self.socket, LOOK)?,
        };
        let (now, devices) = (Instant::now(), link.status()?);
        self.link = Some(link);
        let (before, since) = (&self.last.1, now - self.last.0);
        let rates = devices
            .iter()
            .map(|device| rates(before.iter().find(|old| old.name == device.name), device, since))
            .collect();
        self.last = (now, devices);
        Ok(rates)
    }
}

fn print(args: &Args, looks: &mut Looks) -> Result<ExitCode> {
    loop {
        std::thread::sleep(args.every);
        let rows = looks.next()?;
        if args.json {
            outln!("{}", json!({ "devices": rows }));
        } else {
            screen::lines(&rows).iter().for_each(|line| outln!("{line}"));
        }
        // Whoever has read enough closes the pipe.
        if args.once || !crate::output::flush() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn show(args: &Args, looks: &mut Looks, terminal: &mut ratatui::DefaultTerminal) -> Result<()> {
    let mut screen = Screen::default();
    let mut restarting: Option<Receiver<String>> = None;
    let mut due = Instant::now();
    loop {
        if Instant::now() >= due {
            due = Instant::now() + args.every;
            match looks.next() {
                Ok(rows) => screen.update(rows),
                Err(error) => screen.lose(&format!("{error:#}")),
            }
        }
        if let Some(said) = restarting.as_ref().and_then(|said| said.try_recv().ok()) {
            screen.say(&said);
            restarting = None;
        }
        terminal.draw(|frame| screen.draw(frame)).context("writing to the terminal")?;
        if !event::poll(due.saturating_duration_since(Instant::now()))
            .context("reading from the terminal")?
        {
            continue;
        }
        match event::read().context("reading from the terminal")? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match screen.press(key) {
                Wish::Nothing => {}
                Wish::Quit => return Ok(()),
                Wish::Restart(_) if restarting.is_some() => {
                    screen.say("one restart at a time: the last one has not ended")
                }
                Wish::Restart(name) => {
                    screen.say(&format!("{name} is restarted"));
                    restarting = Some(restart(&args.socket, name));
                }
            },
            _ => {}
        }
    }
}

/// Restarts a device while the screen goes on; says how that ended.
fn restart(socket: &Path, name: String) -> Receiver<String> {
    let (said, outcome) = channel();
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        let reply = Client::within(&socket, RESTART)
            .and_then(|link| link.ask(&Command::Restart { name: name.clone() }));
        let _ = said.send(match reply {
            Ok(Reply::Done) => format!("{name} serves again"),
            Ok(Reply::Refused(why)) => format!("{name}: {why}"),
            Ok(_) => format!("{name}: ring3d has answered something else"),
            Err(error) => format!("{name}: {error:#}"),
        });
    });
    outcome
}
