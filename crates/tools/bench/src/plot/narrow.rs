//! Figures in parts: a picture for each panel, narrow enough for a telephone, and its key apart.
//! What a paper's text states of a curve is drawn into the panel.

use plotters::style::RGBColor;

use super::figure::{BLUE, Bar, Bars, Curve, Dashes, Figure, ORANGE, PALE, Panel};
use super::hosted::distributions;
use crate::Error;
use crate::paper::{Axis, Points};
use crate::report::Report;
use crate::table::rounded;

/// A figure in parts.
#[derive(Debug, Default)]
pub struct Narrow {
    /// Of each panel: its title, and the picture.
    pub panels: Vec<(String, String)>,
    /// Names, each with its colour as `#RRGGBB` and whether its line has dashes.
    pub keys: Vec<(String, String, bool)>,
}

/// A paper's value, and ours.
#[derive(Clone, Debug)]
pub struct Pair {
    /// What both are of.
    pub what: String,
    /// The paper's, if it has one.
    pub paper: Option<f64>,
    /// Ours, if it was measured.
    pub ours: Option<f64>,
}

/// How the paper's own curves look.
const PAPER: (RGBColor, Dashes) = (ORANGE, Some((4, 3)));

/// Draws reports of one benchmark, with the paper's `points`.
///
/// # Errors
/// plotters refuses.
pub fn draw_narrow(reports: &[Report], points: &[Points]) -> Result<Narrow, Error> {
    let Figure { rows, mut keys, .. } = super::figure(reports);
    let mut panels: Vec<Panel> = rows.into_iter().flatten().flat_map(columns).collect();
    if let Some(report) = reports.first().filter(|report| report.bench == "dde") {
        panels.extend(distributions(report).rows.into_iter().flatten());
    }
    for (number, panel) in panels.iter_mut().enumerate() {
        let Panel::Curves(curves) = panel else { continue };
        let wanted = |points: &&Points| points.panel.is_none_or(|panel| panel == number);
        let ends = curves.ends;
        curves.curves.extend(points.iter().filter(wanted).flat_map(|points| of(points, ends)));
    }
    keys.extend(points.iter().map(|points| (points.name.clone(), PAPER.0, PAPER.1)));
    let draw = |panel: &Panel| Ok((panel.title().to_owned(), panel.draw_narrow()?));
    Ok(Narrow {
        panels: panels.iter().map(draw).collect::<Result<_, Error>>()?,
        keys: keys.into_iter().map(|(name, colour, dashes)| key(name, colour, dashes)).collect(),
    })
}

/// Bars that stand below each other in one picture; more of them stand beside these.
const MOST: usize = 12;

/// A panel, in as many as have no more bars than a reader sees at once, all to one scale.
fn columns(panel: Panel) -> Vec<Panel> {
    let Panel::Bars(bars) = panel else { return vec![panel] };
    let least_end = bars.bars.iter().map(Bar::end).fold(0.0, f64::max);
    let Bars { title, axis, names, mut bars, extra, .. } = bars;
    let part = |(number, names): (usize, &[String])| {
        let from = number * MOST;
        let own = bars.extract_if(.., |bar| (from..from + names.len()).contains(&bar.slot));
        let bars = own.map(|bar| Bar { slot: bar.slot - from, ..bar }).collect();
        let (title, axis, names) = (title.clone(), axis.clone(), names.to_vec());
        Panel::Bars(Bars { title, axis, names, bars, extra, least_end })
    };
    names.chunks(MOST).enumerate().map(part).collect()
}

fn key(
    name: String,
    RGBColor(red, green, blue): RGBColor,
    dashes: Dashes,
) -> (String, String, bool) {
    (name, format!("#{red:02X}{green:02X}{blue:02X}"), dashes.is_some())
}

/// The paper's points: a line through them, and a cross at each, as one alone has no line.
fn of(points: &Points, ends: (f64, f64)) -> Vec<Curve> {
    let percent = points.axis == Axis::Percent;
    let reach = (ends.1 - ends.0) / 50.0;
    let line = |points: Vec<(f64, f64)>, dashes| Curve {
        points,
        ranges: Vec::new(),
        colour: PAPER.0,
        dashes,
        percent,
    };
    let marks = points.points.iter().map(|&(at, value)| {
        line(vec![((at - reach).max(ends.0), value), (at + reach, value)], None)
    });
    let through = (points.points.len() > 1).then(|| line(points.points.clone(), PAPER.1));
    marks.chain(through).collect()
}

/// Draws a paper's values and ours below each other, all of one unit.
///
/// # Errors
/// plotters refuses.
pub fn draw_pairs(pairs: &[Pair], unit: &str, is_sound: bool) -> Result<String, Error> {
    // What was too short to be compared is grey.
    let ours = if is_sound { BLUE } else { PALE };
    let mut bars = Bars { axis: unit.to_owned(), ..Bars::default() };
    let label = |value: Option<f64>, whose: &str| match value {
        Some(value) => format!("{whose} {}", rounded(value)),
        None => format!("{whose}: none"),
    };
    for pair in pairs {
        for (name, value, colour, whose) in [
            (pair.what.clone(), pair.paper, PAPER.0, "paper"),
            (String::new(), pair.ours, ours, "ours"),
        ] {
            let part = value.map(|value| (value.max(0.0), colour, String::new()));
            bars.bars.push(Bar {
                slot: bars.names.len(),
                parts: part.into_iter().collect(),
                range: None,
                label: label(value, whose),
            });
            bars.names.push(name);
        }
    }
    Panel::Bars(bars).draw_narrow()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    fn points() -> Vec<Points> {
        let text =
            "name = 'paper: sent'\naxis = 'left'\npanel = 0\npoints = [[0.0, 1.0], [1.0, 0.9]]";
        vec![toml::from_str(text).unwrap()]
    }

    #[test]
    fn the_papers_points_are_in_the_panel_that_they_belong_to_and_in_the_key() {
        let at = |placement: &str| {
            let one = Measurement::new(1, "tcp-out", placement);
            one.with("mbit_s_ratio", 0.99).with("cpu_ratio", 1.0)
        };
        let report = Report::new("split", Lab::default(), &["delay-0", "delay-20000"].map(at));
        let drawn = draw_narrow(&[report], &points()).unwrap();
        assert_eq!(drawn.panels.len(), 2);
        let has = |panel: usize| drawn.panels[panel].1.contains("#E69F00");
        assert!(has(0) && !has(1));
        assert!(drawn.keys.contains(&("paper: sent".into(), "#E69F00".into(), true)));
    }

    #[test]
    fn many_bars_stand_in_columns() {
        let bars = Bars {
            names: (0..30).map(|number| number.to_string()).collect(),
            bars: (0..30).map(|slot| Bar { slot, ..Bar::default() }).collect(),
            ..Bars::default()
        };
        let sizes = columns(Panel::Bars(bars)).into_iter().map(|panel| match panel {
            Panel::Bars(bars) => {
                assert!(bars.bars.iter().all(|bar| bar.slot < bars.names.len()));
                bars.bars.len()
            }
            Panel::Curves(_) => 0,
        });
        assert_eq!(sizes.collect::<Vec<_>>(), [12, 12, 6]);
    }

    #[test]
    fn a_picture_is_as_wide_as_a_telephone_and_says_what_was_not_measured() {
        let pair = Pair { what: "peak <&>".into(), paper: Some(0.93), ours: None };
        let drawn = draw_pairs(&[pair], "x", true).unwrap();
        assert!(drawn.contains("width=\"360\"") && drawn.contains("ours: none"), "{drawn}");
        assert!(drawn.contains("paper 0.93") && drawn.contains("peak &lt;&amp;&gt;"), "{drawn}");
    }
}
