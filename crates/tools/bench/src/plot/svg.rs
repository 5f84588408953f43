//! The few shapes of SVG that a figure needs.

use std::fmt::Write;

/// Where a text is anchored.
#[derive(Clone, Copy, Debug)]
pub enum Anchor {
    /// It begins there.
    Start,
    /// Its middle is there.
    Middle,
    /// It ends there.
    End,
}

/// At least how wide a line of text is in the size of a figure's second line, so that a drawing
/// holds all of it.
pub fn line_width(text: &str) -> f64 {
    6.0 * text.chars().count() as f64
}

/// A drawing of a fixed size, in pixels.
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
}

impl Svg {
    /// An empty drawing on white.
    pub fn new(width: f64, height: f64) -> Self {
        let mut svg = Self { body: String::new(), width, height };
        svg.rect(0.0, 0.0, width, height, "#ffffff");
        svg
    }

    /// A filled rectangle.
    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        self.put(format_args!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>"));
    }

    /// A line of one pixel.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.put(format_args!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{stroke}\"/>"));
    }

    /// A line through `points`, with the lengths of its dashes and gaps (solid if there are none).
    pub fn curve(&mut self, points: &[(f64, f64)], stroke: &str, width: f64, dashes: &str) {
        let places =
            points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ");
        self.put(format_args!(
            "<polyline points=\"{places}\" fill=\"none\" stroke=\"{stroke}\" \
            stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\"/>"
        ));
    }

    /// A text of `size` pixels.
    pub fn text(&mut self, at: (f64, f64), size: u32, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let ((x, y), text) = (at, escape(text));
        self.put(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\">{text}</text>"));
    }

    /// The whole file.
    pub fn finish(self) -> String {
        let (width, height) = (self.width, self.height);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" fill=\"#222222\">\n{}</svg>\n",
            self.body
        )
    }

    fn put(&mut self, shape: std::fmt::Arguments) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{shape}");
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text((0.0, 0.0), 10, Anchor::Start, "a<b & c");
        assert!(svg.finish().contains(">a&lt;b &amp; c</text>"));
    }
}
