package main

import (
	"bytes"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

var (
	ink   = color.RGBA{0x1f, 0x23, 0x28, 0xff}
	faint = color.RGBA{0xd0, 0xd7, 0xde, 0xff}
	red   = color.RGBA{0xcf, 0x22, 0x2e, 0xff}
	// colors are Fanfare's, those of the references (a) to (d), and one more. They
	// differ in brightness too.
	colors = []color.Color{
		color.RGBA{0x09, 0x69, 0xda, 0xff},
		color.RGBA{0xbf, 0x87, 0x00, 0xff},
		color.RGBA{0x8c, 0x95, 0x9f, 0xff},
		color.RGBA{0x1a, 0x7f, 0x37, 0xff},
		color.RGBA{0x82, 0x50, 0xdf, 0xff},
		color.RGBA{0xbc, 0x4c, 0x00, 0xff},
	}
)

const (
	width     = 820 * vg.Length(1)
	barHeight = vg.Length(13)
	groupGap  = vg.Length(12)
	// besides is what title, axis and legend take.
	besides = vg.Length(96)
	// leastGroup is room for a label of two lines.
	leastGroup = vg.Length(30)
)

// Text is drawn with a font whose widths are those of Arial and Helvetica, which
// most machines have if they do not have this one.
const (
	fontFamily   = "font-family:Liberation Sans"
	fontFamilies = "font-family:'Liberation Sans',Arial,Helvetica,sans-serif"
)

func textStyle(size vg.Length) text.Style {
	return text.Style{
		Color:   ink,
		Font:    font.Font{Typeface: "Liberation", Variant: "Sans", Size: size},
		Handler: plot.DefaultTextHandler,
	}
}

// draw returns the picture as SVG.
func (p picture) draw() ([]byte, error) {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	drawn := plot.New()
	drawn.BackgroundColor = color.White
	drawn.Title.Text = p.title
	drawn.Title.TextStyle.Font.Size = 15
	drawn.Title.TextStyle.Color = ink
	drawn.Title.Padding = 6
	drawn.X.Label.Text = p.axis
	if p.logarithmic {
		drawn.X.Label.Text += " (logarithmic)"
	}
	drawn.X.Label.TextStyle.Color = ink
	drawn.X.Color, drawn.X.Tick.Color, drawn.X.Tick.Label.Color = ink, ink, ink
	drawn.Y.Color, drawn.Y.Tick.Label.Color = ink, ink
	drawn.Y.Tick.Length = 0
	drawn.Y.Padding = 0

	b := &bars{picture: p, fills: p.colorsOf(len(colors))}
	b.lay()
	drawn.X.Min, drawn.X.Max = b.least, b.most
	if p.logarithmic {
		drawn.X.Scale = plot.LogScale{}
	}
	drawn.X.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick { return ticks(low, high, p.logarithmic) })
	drawn.Y.Min, drawn.Y.Max = 0, float64(b.height)
	drawn.Y.Tick.Marker = plot.ConstantTicks(b.labels)
	drawn.Add(b)
	if !p.dots && len(p.series) > 1 {
		drawn.Legend.TextStyle = textStyle(10)
		drawn.Legend.Padding = 4
		for i, name := range p.series {
			drawn.Legend.Add(name, swatch{colors[b.fills[i]]})
		}
	}
	return p.render(drawn, b.height)
}

// render puts the legend below the plot, where it hides nothing.
func (p picture) render(drawn *plot.Plot, height vg.Length) ([]byte, error) {
	legend := drawn.Legend
	drawn.Legend = plot.NewLegend()
	legendHeight := vg.Length(0)
	if !p.dots && len(p.series) > 1 {
		legendHeight = vg.Length(len(p.series)) * 16
	}
	canvas := vgsvg.New(width, height+besides+legendHeight)
	whole := draw.New(canvas)
	whole.FillPolygon(color.White, rectangle(whole.Min.X, whole.Min.Y, whole.Max.X, whole.Max.Y))
	drawn.Draw(draw.Crop(whole, 10, -10, legendHeight+10, -8))
	if legendHeight > 0 {
		legend.Left = true
		legend.Draw(draw.Crop(whole, 14, 0, 6, legendHeight+6-whole.Max.Y))
	}
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	return []byte(strings.ReplaceAll(out.String(), fontFamily+";", fontFamilies+";")), nil
}

// swatch is a colour in the legend.
type swatch struct{ color color.Color }

func (s swatch) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(s.color, rectangle(c.Min.X, c.Min.Y+1, c.Max.X, c.Max.Y-1))
}

func rectangle(left, bottom, right, top vg.Length) []vg.Point {
	return []vg.Point{{X: left, Y: bottom}, {X: right, Y: bottom}, {X: right, Y: top}, {X: left, Y: top}}
}

// bars draws a picture's groups from the top down. Their places on the y axis are
// lengths.
type bars struct {
	picture
	fills       []int // indexes of colors, by series
	height      vg.Length
	labels      []plot.Tick
	tops        []vg.Length // by group, of its first bar
	least, most float64     // of the x axis
}

// lay finds the places of groups and the ends of the axis.
func (b *bars) lay() {
	heights := make([]vg.Length, len(b.groups))
	b.height = groupGap
	for i, g := range b.groups {
		heights[i] = max(leastGroup, vg.Length(len(g.bars))*barHeight) + groupGap
		b.height += heights[i]
	}
	top := b.height - groupGap
	for i, g := range b.groups {
		middle := top - (heights[i]-groupGap)/2
		b.tops = append(b.tops, middle+vg.Length(len(g.bars))*barHeight/2)
		b.labels = append(b.labels, plot.Tick{Value: float64(middle), Label: g.label})
		top -= heights[i]
	}
	var values []float64
	for _, g := range b.groups {
		for _, bar := range g.bars {
			values = append(values, bar.value.Min, bar.value.Max)
		}
	}
	if b.limit > 0 {
		values = append(values, b.limit)
	}
	values = slices.DeleteFunc(values, func(v float64) bool { return b.logarithmic && v <= 0 })
	if len(values) == 0 {
		values = []float64{1}
	}
	b.least, b.most = 0, slices.Max(values)*1.02
	if b.logarithmic {
		b.least = math.Pow(10, math.Floor(math.Log10(slices.Min(values))*2)/2)
		if !b.dots { // a bar of the smallest value must be seen
			b.least = math.Pow(10, math.Floor(math.Log10(slices.Min(values))-0.1))
		}
	}
	if b.most <= b.least {
		b.most = b.least + 1
	}
}

// Plot implements plot.Plotter.
func (b *bars) Plot(c draw.Canvas, plt *plot.Plot) {
	x, y := plt.Transforms(&c)
	grid := draw.LineStyle{Color: faint, Width: 0.5}
	for _, t := range plt.X.Tick.Marker.Ticks(plt.X.Min, plt.X.Max) {
		if !t.IsMinor() {
			c.StrokeLine2(grid, x(t.Value), c.Min.Y, x(t.Value), c.Max.Y)
		}
	}
	if b.limit > 0 {
		c.StrokeLine2(draw.LineStyle{Color: red, Width: 1.2}, x(b.limit), c.Min.Y, x(b.limit), c.Max.Y)
	}
	clamp := func(v float64) vg.Length { return x(max(v, plt.X.Min)) }
	for i, g := range b.groups {
		for j, bar := range g.bars {
			top := y(float64(b.tops[i] - vg.Length(j)*barHeight))
			bottom := y(float64(b.tops[i] - vg.Length(j+1)*barHeight))
			one := b.bar
			if b.dots {
				one = b.dot
			}
			one(c, clamp, bar, bottom, top)
		}
	}
}

// bar draws one, with a thin line for its spread, and its text after it.
func (b *bars) bar(c draw.Canvas, x func(float64) vg.Length, bar bar, bottom, top vg.Length) {
	middle := (bottom + top) / 2
	c.FillPolygon(colors[b.fills[bar.series]], rectangle(c.Min.X, bottom+1, x(bar.value.Median), top-1))
	c.StrokeLine2(draw.LineStyle{Color: ink, Width: 0.8}, x(bar.value.Min), middle, x(bar.value.Max), middle)
	c.FillText(barText(), vg.Point{X: x(bar.value.Max) + 5, Y: middle}, bar.text)
}

// dot draws a point with its spread, a thick line between the quartiles, and its
// text in a column beside the plot. One beyond the limit is red.
func (b *bars) dot(c draw.Canvas, x func(float64) vg.Length, bar bar, bottom, top vg.Length) {
	middle := (bottom + top) / 2
	fill := colors[0]
	if bar.value.Median > b.limit {
		fill = red
	}
	c.StrokeLine2(draw.LineStyle{Color: fill, Width: 0.8}, x(bar.value.Min), middle, x(bar.value.Max), middle)
	c.StrokeLine2(draw.LineStyle{Color: fill, Width: 3}, x(bar.value.Q1), middle, x(bar.value.Q3), middle)
	c.DrawGlyphNoClip(draw.GlyphStyle{Color: fill, Radius: 4, Shape: draw.CircleGlyph{}}, vg.Point{X: x(bar.value.Median), Y: middle})
	c.FillText(barText(), vg.Point{X: c.Max.X + 8, Y: middle}, bar.text)
}

func barText() text.Style {
	style := textStyle(10)
	style.YAlign = draw.YCenter
	return style
}

// GlyphBoxes implements plot.GlyphBoxer: it keeps room for text after the bars.
func (b *bars) GlyphBoxes(plt *plot.Plot) []plot.GlyphBox {
	var boxes []plot.GlyphBox
	for i, g := range b.groups {
		for _, bar := range g.bars {
			end := max(bar.value.Max, plt.X.Min)
			if b.dots {
				end = plt.X.Max
			}
			box := plot.GlyphBox{X: plt.X.Norm(end), Y: plt.Y.Norm(float64(b.tops[i]))}
			box.Rectangle.Max.X = barText().Width(bar.text) + 10
			boxes = append(boxes, box)
		}
	}
	return boxes
}

// ticks are round values: on a logarithmic axis powers of ten, and if these are
// few, 2 and 5 times as much.
func ticks(low, high float64, logarithmic bool) []plot.Tick {
	var values []float64
	if logarithmic {
		steps := []float64{1}
		if high/low < 500 {
			steps = []float64{1, 2, 5}
		}
		for power := math.Floor(math.Log10(low)); math.Pow(10, power) <= high; power++ {
			for _, step := range steps {
				values = append(values, step*math.Pow(10, power))
			}
		}
	} else {
		step := math.Pow(10, math.Floor(math.Log10(high)))
		for _, divisor := range []float64{1, 2, 5, 10} {
			if high/(step/divisor) >= 4 {
				step /= divisor
				break
			}
		}
		for v := 0.0; v <= high; v += step {
			values = append(values, v)
		}
	}
	var ticks []plot.Tick
	for _, v := range values {
		if v >= low*0.999 && v <= high {
			ticks = append(ticks, plot.Tick{Value: v, Label: figure(v)})
		}
	}
	return ticks
}
