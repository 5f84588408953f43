//! What all figures have in common: a head, a key, and rows of panels, each of which is bars below
//! each other or curves over an axis.

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Error;

/// Pixels.
const MARGIN: i32 = 24;
const HEAD: i32 = 60;
const KEY: i32 = 24;
/// From one bar to the next.
const SLOT: i32 = 18;
/// Of a panel of bars: names before it, title above it, ticks below it, what stands beside a bar.
const NAMES: i32 = 230;
const TITLE: i32 = 44;
const TICKS: i32 = 40;
const VALUE: u32 = 140;
const BARS: i32 = 400;
/// Of a panel of curves.
const CURVES: (i32, i32) = (600, 380);

/// Colours that stay apart in grey and for the colour-blind. [Okabe, Ito: Color Universal Design,
/// 2008]
pub const GREY: RGBColor = RGBColor(0x55, 0x55, 0x55);
pub const PALE: RGBColor = RGBColor(0xbb, 0xbb, 0xbb);
pub const LIGHT: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
pub const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xb2);
pub const SKY: RGBColor = RGBColor(0x56, 0xb4, 0xe9);
pub const GREEN: RGBColor = RGBColor(0x00, 0x9e, 0x73);
pub const PINK: RGBColor = RGBColor(0xcc, 0x79, 0xa7);
pub const RED: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
pub const ORANGE: RGBColor = RGBColor(0xe6, 0x9f, 0x00);
pub const YELLOW: RGBColor = RGBColor(0xf0, 0xe4, 0x42);
const LINES: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);

/// A figure.
#[derive(Default)]
pub struct Figure {
    pub title: String,
    /// What it is after, what was done where.
    pub source: String,
    /// Names of colours; of curves with their dashes.
    pub keys: Vec<(String, RGBColor, Dashes)>,
    /// Panels beside each other in rows below each other.
    pub rows: Vec<Vec<Panel>>,
}

/// Lengths of a dash and of the gap behind it; solid without.
pub type Dashes = Option<(i32, i32)>;

/// One part of a figure.
pub enum Panel {
    Bars(Bars),
    Curves(Curves),
}

/// Bars below each other, which all panels of a row have the same names for.
#[derive(Default)]
pub struct Bars {
    pub title: String,
    /// What the axis below is of.
    pub axis: String,
    pub names: Vec<String>,
    pub bars: Vec<Bar>,
    /// By so many pixels it is wider than usual.
    pub extra: i32,
    /// What the axis reaches at least, so that panels can be compared.
    pub least_end: f64,
}

/// One bar.
#[derive(Default)]
pub struct Bar {
    /// Which of the names it has.
    pub slot: usize,
    /// Its parts one after the other: how long, in which colour, and what stands in it.
    pub parts: Vec<(f64, RGBColor, String)>,
    /// From the smallest to the largest.
    pub range: Option<(f64, f64)>,
    /// What stands beside it.
    pub label: String,
}

/// Curves with an axis on the left, and for those of percents one on the right.
#[derive(Default)]
pub struct Curves {
    pub title: String,
    /// What the axes are of: below, left and right.
    pub axes: [String; 3],
    /// Ends of the axis below.
    pub ends: (f64, f64),
    /// The number at a place of the axis below.
    pub tick: Option<fn(f64) -> String>,
    pub curves: Vec<Curve>,
    /// Filled from zero: from where to where, and how high.
    pub columns: Vec<(f64, f64, f64)>,
}

/// One curve.
pub struct Curve {
    pub points: Vec<(f64, f64)>,
    /// At a place, from the smallest to the largest.
    pub ranges: Vec<(f64, f64, f64)>,
    pub colour: RGBColor,
    pub dashes: Dashes,
    /// Whether it is in percent, by the axis on the right, and thin.
    pub percent: bool,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

impl Figure {
    /// The file's text.
    pub fn draw(&self) -> Result<String, Error> {
        let mut text = String::new();
        self.draw_into(&mut text).map_err(|error| Error::format("a figure", error))?;
        Ok(text)
    }

    fn draw_into(&self, text: &mut String) -> Drawn {
        let widths: Vec<i32> = self.rows.iter().map(|row| width(row)).collect();
        let line = 6 * self.source.chars().count() as i32;
        let wide = widths.into_iter().max().unwrap_or(0).max(line).max(400) + 2 * MARGIN;
        let top = HEAD + if self.keys.is_empty() { 0 } else { KEY * self.key_lines(wide) };
        let high = top + self.rows.iter().map(|row| height(row)).sum::<i32>() + MARGIN;
        let root = SVGBackend::with_string(text, (wide as u32, high as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        write(&root, &self.title, (MARGIN, 14), 16, HPos::Left)?;
        write(&root, &self.source, (MARGIN, 38), 11, HPos::Left)?;
        self.key(&root, wide)?;
        let mut y = top;
        for row in &self.rows {
            let (high, mut x) = (height(row), MARGIN);
            for (number, panel) in row.iter().enumerate() {
                let wide = panel_width(panel, number == 0);
                let area = root.clone().shrink((x, y), (wide as u32, high as u32));
                match panel {
                    Panel::Bars(bars) => bars.draw(&area, number == 0)?,
                    Panel::Curves(curves) => curves.draw(&area)?,
                }
                x += wide;
            }
            y += high;
        }
        root.present()?;
        drop(root);
        Ok(())
    }

    /// Where each name of the key begins.
    fn key_places(&self, wide: i32) -> Vec<(i32, i32)> {
        let (mut x, mut y) = (MARGIN, HEAD);
        let place = |(name, ..): &(String, RGBColor, Dashes)| {
            let room = 70 + 7 * name.chars().count() as i32;
            if x + room > wide && x > MARGIN {
                (x, y) = (MARGIN, y + KEY);
            }
            x += room;
            (x - room, y)
        };
        self.keys.iter().map(place).collect()
    }

    fn key_lines(&self, wide: i32) -> i32 {
        self.key_places(wide).last().map_or(0, |(_, y)| (y - HEAD) / KEY + 1)
    }

    fn key(&self, root: &Area<'_>, wide: i32) -> Drawn {
        for ((name, colour, dashes), (x, y)) in self.keys.iter().zip(self.key_places(wide)) {
            let style = colour.stroke_width(3);
            let line = [(x, y + 6), (x + 40, y + 6)];
            match dashes {
                None => root.draw(&PathElement::new(line.to_vec(), style))?,
                Some((dash, gap)) => {
                    root.draw(&DashedPathElement::new(line, *dash, *gap, style))?;
                }
            }
            write(root, name, (x + 46, y), 11, HPos::Left)?;
        }
        Ok(())
    }
}

fn width(row: &[Panel]) -> i32 {
    row.iter().enumerate().map(|(number, panel)| panel_width(panel, number == 0)).sum()
}

fn panel_width(panel: &Panel, first: bool) -> i32 {
    match panel {
        Panel::Bars(bars) => BARS + bars.extra + if first { NAMES } else { 0 },
        Panel::Curves(_) => CURVES.0,
    }
}

fn height(row: &[Panel]) -> i32 {
    // A distribution is one of many.
    let has_columns =
        |panel: &Panel| matches!(panel, Panel::Curves(one) if !one.columns.is_empty());
    let curves = if row.iter().any(has_columns) { CURVES.1 / 2 } else { CURVES.1 };
    let one = |panel: &Panel| match panel {
        Panel::Bars(bars) => TITLE + bars.names.len() as i32 * SLOT + TICKS,
        Panel::Curves(_) => curves,
    };
    row.iter().map(one).max().unwrap_or(0)
}

fn write(area: &Area<'_>, text: &str, at: (i32, i32), size: u32, side: HPos) -> Drawn {
    let style = font(size).color(&INK).pos(Pos::new(side, VPos::Top));
    Ok(area.draw(&Text::new(text.to_owned(), at, style))?)
}

fn font(size: u32) -> FontDesc<'static> {
    ("DejaVu Sans, Helvetica, Arial, sans-serif", size).into_font()
}

impl Bars {
    fn draw(&self, area: &Area<'_>, named: bool) -> Drawn {
        let left = if named { NAMES } else { 0 };
        write(area, &self.title, (left, 0), 12, HPos::Left)?;
        write(area, &self.axis, (left, 18), 10, HPos::Left)?;
        let ends = self.bars.iter().map(Bar::end);
        let end = ends.fold(self.least_end, f64::max).max(f64::MIN_POSITIVE) * 1.02;
        let slots = self.names.len() as f64;
        let mut chart = ChartBuilder::on(area)
            .margin_top(TITLE)
            .margin_right(VALUE)
            .margin_bottom(8)
            .set_label_area_size(LabelAreaPosition::Left, left)
            .set_label_area_size(LabelAreaPosition::Bottom, TICKS - 8)
            .build_cartesian_2d(0.0..end, slots..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_labels(5)
            .x_label_formatter(&|value| tick(*value))
            .label_style(font(10).color(&INK))
            .bold_line_style(LINES)
            .light_line_style(WHITE.mix(0.0))
            .axis_style(GREY)
            .draw()?;
        for (slot, name) in self.names.iter().enumerate().filter(|_| named) {
            write(area, name, (left - 8, TITLE + 3 + slot as i32 * SLOT), 11, HPos::Right)?;
        }
        for bar in &self.bars {
            bar.draw(&mut chart, ((0.15, 0.85), 10), &|_, _| true)?;
        }
        Ok(())
    }

    /// On a narrow area, where there is no room for names beside the bars: each stands over its
    /// own.
    fn draw_narrow(&self, area: &Area<'_>) -> Drawn {
        write(area, &self.axis, (4, 0), 13, HPos::Left)?;
        let longest = self.bars.iter().map(|bar| bar.label.chars().count()).max().unwrap_or(0);
        let beside = (NARROW_LETTER * longest as i32 + 12).min(NARROW.0 / 2);
        let ends = self.bars.iter().map(Bar::end);
        let end = ends.fold(self.least_end, f64::max).max(f64::MIN_POSITIVE) * 1.02;
        let (slots, (wide, _)) = (self.names.len() as f64, area.dim_in_pixel());
        let room = f64::from(wide as i32 - beside - 4);
        let mut chart = ChartBuilder::on(area)
            .margin_top(NARROW_AXIS)
            .margin_left(4)
            .margin_right(beside)
            .set_label_area_size(LabelAreaPosition::Bottom, NARROW_TICKS)
            .build_cartesian_2d(0.0..end, slots..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_labels(4)
            .x_label_formatter(&|value| tick(*value))
            .label_style(font(13).color(&INK))
            .bold_line_style(LINES)
            .light_line_style(WHITE.mix(0.0))
            .axis_style(GREY)
            .draw()?;
        for (slot, name) in self.names.iter().enumerate() {
            let name = shortened(name, (NARROW.0 / NARROW_LETTER) as usize);
            write(area, &name, (5, NARROW_AXIS + 1 + slot as i32 * NARROW_SLOT), 13, HPos::Left)?;
        }
        // A number that is wider than its part would stand in the next one.
        let fits = |length: f64, text: &str| length / end * room > 7.0 * text.len() as f64;
        for bar in &self.bars {
            // One without a name belongs to the one above it.
            let is_named = self.names.get(bar.slot).is_some_and(|name| !name.is_empty());
            let share = if is_named { (0.5, 0.92) } else { (0.06, 0.48) };
            bar.draw(&mut chart, (share, 12), &fits)?;
        }
        Ok(())
    }
}

/// Pixels of a panel for a narrow screen, and of its parts.
const NARROW: (i32, i32) = (360, 270);
const NARROW_AXIS: i32 = 18;
const NARROW_SLOT: i32 = 34;
const NARROW_TICKS: i32 = 22;
/// A letter of a text in it, about.
const NARROW_LETTER: i32 = 7;

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most - 3).chain("...".chars()).collect(),
        None => text.to_owned(),
    }
}

impl Panel {
    /// Its title, which a narrow picture has no room for.
    pub fn title(&self) -> &str {
        match self {
            Self::Bars(bars) => &bars.title,
            Self::Curves(curves) => &curves.title,
        }
    }

    /// A picture that a telephone shows without making it smaller, on no ground of its own.
    pub fn draw_narrow(&self) -> Result<String, Error> {
        let mut text = String::new();
        self.narrow_into(&mut text).map_err(|error| Error::format("a figure", error))?;
        Ok(text)
    }

    fn narrow_into(&self, text: &mut String) -> Drawn {
        let high = match self {
            Self::Bars(bars) => NARROW_AXIS + bars.names.len() as i32 * NARROW_SLOT + NARROW_TICKS,
            Self::Curves(_) => NARROW.1,
        };
        let size = (NARROW.0 as u32, high as u32);
        let root = SVGBackend::with_string(text, size).into_drawing_area();
        match self {
            Self::Bars(bars) => bars.draw_narrow(&root)?,
            Self::Curves(curves) => curves.draw_narrow(&root)?,
        }
        root.present()?;
        drop(root);
        Ok(())
    }
}

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

impl Bar {
    /// How far it reaches.
    pub fn end(&self) -> f64 {
        let all = self.parts.iter().map(|(length, ..)| length).sum();
        self.range.map_or(all, |(_, most)| most.max(all))
    }

    /// Between two shares of its slot, in letters of a size; numbers stand in parts with room.
    fn draw(
        &self,
        chart: &mut Chart<'_, '_>,
        ((from, to), letters): ((f64, f64), u32),
        fits: &dyn Fn(f64, &str) -> bool,
    ) -> Drawn {
        let (top, mut x) = (self.slot as f64, 0.0);
        let line = top + f64::midpoint(from, to);
        let centre = |side| font(letters).color(&INK).pos(Pos::new(side, VPos::Center));
        for (length, colour, text) in &self.parts {
            let corners = [(x, top + from), (x + length, top + to)];
            chart.draw_series([Rectangle::new(corners, colour.filled())])?;
            if !text.is_empty() && fits(*length, text) {
                let middle = (x + length / 2.0, line);
                chart.draw_series([Text::new(text.clone(), middle, centre(HPos::Center))])?;
            }
            x += length;
        }
        if let Some((least, most)) = self.range {
            let ends = vec![(least, line), (most, line)];
            chart.draw_series([PathElement::new(ends, BLACK)])?;
        }
        let beside = EmptyElement::at((self.end(), line))
            + Text::new(self.label.clone(), (6, 0), centre(HPos::Left));
        chart.draw_series([beside])?;
        Ok(())
    }
}

impl Curves {
    fn draw(&self, area: &Area<'_>) -> Drawn {
        write(area, &self.title, (0, 0), 12, HPos::Left)?;
        self.draw_chart(area, (24, 60), 10)
    }

    /// Its title stands elsewhere.
    fn draw_narrow(&self, area: &Area<'_>) -> Drawn {
        self.draw_chart(area, (8, 52), 12)
    }

    /// Below a margin, with so much room for the numbers of the axis on the left, in letters of a
    /// size.
    fn draw_chart(&self, area: &Area<'_>, (margin, left): (i32, i32), size: u32) -> Drawn {
        let percent = !self.axes[2].is_empty();
        let own = self.curves.iter().filter(|curve| !(percent && curve.percent));
        let values = own.flat_map(|curve| {
            let most = curve.ranges.iter().map(|range| range.2);
            curve.points.iter().map(|point| point.1).chain(most)
        });
        let columns = self.columns.iter().map(|column| column.2);
        let top = values.chain(columns).fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.05;
        let (from, to) = self.ends;
        let to = if to > from { to } else { from + 1.0 };
        let mut chart = ChartBuilder::on(area)
            .margin_top(margin)
            .margin_right(20)
            .margin_bottom(8)
            .set_label_area_size(LabelAreaPosition::Left, left)
            .set_label_area_size(LabelAreaPosition::Right, if percent { 45 } else { 0 })
            .set_label_area_size(LabelAreaPosition::Bottom, 40)
            .build_cartesian_2d(from..to, 0.0..top)?
            .set_secondary_coord(from..to, 0.0..105.0);
        let text = font(size).color(&INK);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels((area.dim_in_pixel().0 / 50) as usize)
            .y_labels(6)
            .x_desc(&self.axes[0])
            .y_desc(&self.axes[1])
            .x_label_formatter(&|value| self.tick.map_or_else(|| tick(*value), |tick| tick(*value)))
            .y_label_formatter(&|value| tick(*value))
            .label_style(text.clone())
            .axis_desc_style(text.clone())
            .bold_line_style(LINES)
            .light_line_style(WHITE.mix(0.0))
            .axis_style(GREY)
            .draw()?;
        if percent {
            let mut axes = chart.configure_secondary_axes();
            axes.y_labels(6).y_desc(&self.axes[2]).label_style(text.clone());
            axes.y_label_formatter(&|value| tick(*value));
            axes.axis_desc_style(text).axis_style(GREY).draw()?;
        }
        for &(from, to, high) in &self.columns {
            chart.draw_series([Rectangle::new([(from, 0.0), (to, high)], BLUE.filled())])?;
        }
        for curve in self.curves.iter().filter(|curve| !curve.points.is_empty()) {
            for &(at, least, most) in &curve.ranges {
                let line = vec![(at, least.max(0.0)), (at, most.max(0.0))];
                chart.draw_series([PathElement::new(line, curve.colour)])?;
            }
            let style = curve.colour.stroke_width(if curve.percent { 1 } else { 2 });
            // Axes begin at 0, and a file may have anything.
            let points = curve.points.iter().map(|&(at, value)| (at, value.max(0.0)));
            match (curve.percent && percent, curve.dashes) {
                (false, None) => drop(chart.draw_series(LineSeries::new(points, style))?),
                (true, None) => drop(chart.draw_secondary_series(LineSeries::new(points, style))?),
                (false, Some((dash, gap))) => {
                    chart.draw_series(DashedLineSeries::new(points, dash, gap, style))?;
                }
                (true, Some((dash, gap))) => {
                    let line = DashedLineSeries::new(points, dash, gap, style);
                    chart.draw_secondary_series(line)?;
                }
            }
        }
        Ok(())
    }
}

/// A number of an axis.
fn tick(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} M", rounded(value / 1e6)),
        value if value >= 1e3 => format!("{} k", rounded(value / 1e3)),
        value => rounded(value).to_string(),
    }
}

/// Sums of binary fractions may print many digits.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
