package console

import (
	"fmt"
	"math"
)

// picture is an inline SVG: shapes in the order in which they are drawn. What it says
// stands in words and in a table beside it too.
type picture struct {
	ID            string
	Title, Desc   string
	Class         string // wide or narrow: the stylesheet shows one of the two
	Width, Height float64
	Shapes        []shape
}

// shape is one of a picture. Colours are the stylesheet's, by class.
type shape struct {
	Kind           string // rect, line or text
	Class          string
	X, Y, X2, Y2   float64 // line: both ends; rect: X2, Y2 are width and height
	Anchor, Text   string  // text: start, middle or end
	RadiusOfCorner float64 // rect
}

func (p *picture) rect(class string, x, y, width, height, radius float64) {
	if width > 0 && height > 0 {
		p.Shapes = append(p.Shapes, shape{Kind: "rect", Class: class, X: round(x), Y: round(y), X2: round(width), Y2: round(height), RadiusOfCorner: radius})
	}
}

func (p *picture) line(class string, x, y, x2, y2 float64) {
	p.Shapes = append(p.Shapes, shape{Kind: "line", Class: class, X: round(x), Y: round(y), X2: round(x2), Y2: round(y2)})
}

func (p *picture) text(class, anchor string, x, y float64, text string) {
	p.Shapes = append(p.Shapes, shape{Kind: "text", Class: class, X: round(x), Y: round(y), Anchor: anchor, Text: text})
}

// cross marks a place.
func (p *picture) cross(class string, x, y, size float64) {
	p.line(class, x-size, y-size, x+size, y+size)
	p.line(class, x-size, y+size, x+size, y-size)
}

func round(v float64) float64 { return math.Round(v*10) / 10 }

// ViewBox is the SVG attribute.
func (p *picture) ViewBox() string { return fmt.Sprintf("0 0 %g %g", p.Width, p.Height) }
