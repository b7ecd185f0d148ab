package ladder

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"strings"
	"time"
)

// Positions and sizes in pixels.
const (
	width   = 1180
	timeAt  = 118 // the right end of the times
	leftAt  = 150
	rightAt = 790
	noteAt  = 812
	top     = 96 // of a chart's first row
	rowStep = 34
	lineGap = 15
	slope   = 9 // vertical extent of an arrow
	// labelLetters and noteLetters are the most letters of an arrow's label and of a remark beside
	// it.
	labelLetters, noteLetters = 92, 54
)

var looks = [kinds]struct{ colour, dash, word string }{
	Request:    {"#1f5fbf", "", "request"},
	Answer:     {"#2a7f3f", "", "ACK or response"},
	Repeated:   {"#d97706", "7 4", "sent again"},
	Negative:   {"#c62828", "", "NAK, reject or Terminate"},
	NotReady:   {"#8e24aa", "", "RNR NAK"},
	Management: {"#546e7a", "", "set-up and end"},
}

const style = `text { font-family: "DejaVu Sans", Verdana, sans-serif; font-size: 12px; fill: #222 }
.time { fill: #666; font-size: 11px; text-anchor: end } .label { text-anchor: middle } .note { fill: #555; font-size: 11px }
.wrong { fill: #b00020; font-size: 11px; font-weight: bold } .title { font-size: 16px; font-weight: bold } .end { text-anchor: middle; font-weight: bold }
.silence { fill: #777; font-style: italic; text-anchor: middle } .missing { fill: #b00020; text-anchor: middle; font-weight: bold }
.life { stroke: #999; stroke-width: 2 }
`

// SVG draws the charts below each other.
func SVG(w io.Writer, charts []Chart) error {
	var body strings.Builder
	y := 8
	for i := range charts {
		y = charts[i].draw(&body, y)
	}
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d">`+"\n<style>%s", width, y+8,
		width, y+8, style)
	for _, k := range []Kind{Repeated, Negative, NotReady} {
		fmt.Fprintf(out, ".kind%d { fill: %s; font-weight: bold }\n", k, looks[k].colour)
	}
	fmt.Fprintln(out, "</style>")
	fmt.Fprintln(out, `<rect width="100%" height="100%" fill="white"/>`)
	marks(out)
	if _, err := out.WriteString(body.String()); err != nil {
		return err
	}
	fmt.Fprintln(out, "</svg>")
	return out.Flush()
}

// HTML writes a page with the charts.
func HTML(w io.Writer, title string, charts []Chart) error {
	if _, err := fmt.Fprintf(w,
		"<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>%s</title>\n<h1 style=\"font-family: sans-serif\">%s</h1>\n",
		html.EscapeString(title), html.EscapeString(title)); err != nil {
		return err
	}
	if err := SVG(w, charts); err != nil {
		return err
	}
	_, err := io.WriteString(w, "</html>\n")
	return err
}

// marks defines the arrow heads.
func marks(w io.Writer) {
	fmt.Fprint(w, "<defs>")
	for k, l := range looks {
		fmt.Fprintf(w,
			`<marker id="head%d" viewBox="0 0 10 10" refX="9" refY="5" markerUnits="userSpaceOnUse" markerWidth="11" markerHeight="11" orient="auto"><path d="M0 0L10 5L0 10z" fill="%s"/></marker>`, k, l.colour)
	}
	fmt.Fprintln(w, "</defs>")
}

func text(w io.Writer, class string, x, y int, s string) {
	fmt.Fprintf(w, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, x, y, html.EscapeString(s))
}

// draw draws a chart from y on and returns its end.
func (c *Chart) draw(w *strings.Builder, y int) int {
	rows, more := c.rows()
	more += c.Omitted
	text(w, "title", 16, y+20, c.Title)
	c.legend(w, y+42)
	text(w, "end", leftAt, y+70, c.Left)
	text(w, "end", rightAt, y+70, c.Right)
	begin := y + 78
	var arrows strings.Builder
	at := y + top
	for i := range rows {
		at = rows[i].draw(&arrows, at)
	}
	if more > 0 {
		text(&arrows, "silence", (leftAt+rightAt)/2, at+12, fmt.Sprintf("%d more packets are not drawn", more))
		at += rowStep
	}
	for _, x := range []int{leftAt, rightAt} {
		fmt.Fprintf(w, `<line class="life" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", x, begin, x, at)
	}
	w.WriteString(arrows.String())
	return at + 28
}

// legend draws the colours of the chart's kinds, with the number of packets of each, and the number
// of gaps.
func (c *Chart) legend(w io.Writer, y int) {
	var has [kinds]int
	gaps := 0
	for i := range c.Packets {
		has[c.Packets[i].Kind]++
		if c.Packets[i].Missing != "" {
			gaps++
		}
	}
	x := 16
	for k, l := range looks {
		if has[k] == 0 {
			continue
		}
		dash := ""
		if l.dash != "" {
			dash = ` stroke-dasharray="` + l.dash + `"`
		}
		fmt.Fprintf(w, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="2.5"%s/>`, x, y, x+26, y, l.colour, dash)
		word := fmt.Sprintf("%d × %s", has[k], l.word)
		text(w, "note", x+32, y+4, word)
		x += 52 + len(word)*6
	}
	if gaps > 0 {
		fmt.Fprintf(w, `<path d="M%d %dl12 12m0 -12l-12 12" stroke="#b00020" stroke-width="2.5"/>`, x, y-6)
		text(w, "note", x+18, y+4, fmt.Sprintf("%d × gap", gaps))
	}
}

// draw draws a row and returns the start of the next one.
func (r *row) draw(w io.Writer, y int) int {
	middle := (leftAt + rightAt) / 2
	if r.silence > 0 {
		for _, x := range []int{leftAt, rightAt} {
			fmt.Fprintf(w,
				`<rect x="%d" y="%d" width="8" height="18" fill="white"/><path d="M%d %dl6 4l-12 5l6 5" stroke="#999" stroke-width="2" fill="none"/>`, x-4, y-2, x, y-2)
		}
		text(w, "silence", middle, y+12, "nothing for "+span(r.silence))
		y += 30
	}
	from, to := leftAt, rightAt
	if !r.first.FromLeft {
		from, to = to, from
	}
	if m := r.first.Missing; m != "" {
		stop := (from + 2*to) / 3
		fmt.Fprintf(w, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#b00020" stroke-width="1.5" stroke-dasharray="2 4"/>`, from, y+12,
			stop, y+18)
		fmt.Fprintf(w, `<path d="M%d %dl12 12m0 -12l-12 12" stroke="#b00020" stroke-width="2.5"/>`, stop-6, y+12)
		text(w, "missing", middle, y+6, short(m+" missing", labelLetters))
		y += rowStep
	}
	l := looks[r.first.Kind]
	notes, wrong := r.notes()
	height := rowStep + max(len(notes)+len(wrong)-2, 0)*lineGap
	if len(wrong) > 0 {
		height += lineGap / 2
	}
	if len(r.first.Wrong) > 0 {
		fmt.Fprintf(w, `<rect x="%d" y="%d" width="%d" height="%d" fill="#fdecea"/>`, leftAt+2, y-6, width-leftAt-10, height-2)
	}
	fmt.Fprintf(w, `<g><title>%s</title>`, html.EscapeString(r.first.Title))
	text(w, "time", timeAt, y+14, clock(r.first.Time))
	if r.count > 1 { // a band shows that there are several packets; its height is not to scale
		fmt.Fprintf(w, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="9" stroke-opacity="0.25"/>`, from, y+12, to,
			y+12+slope, l.colour)
	}
	dash := ""
	if l.dash != "" {
		dash = ` stroke-dasharray="` + l.dash + `"`
	}
	fmt.Fprintf(w, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="2"%s marker-end="url(#head%d)"/>`, from, y+12, to,
		y+12+slope, l.colour, dash, r.first.Kind)
	label := "label"
	// Highlighted kinds have their name in the label too.
	if k := r.first.Kind; k == Repeated || k == Negative || k == NotReady {
		label = fmt.Sprintf("label kind%d", k)
	}
	text(w, label, middle, y+6, short(r.label(), labelLetters))
	at := y + 12
	for _, n := range notes {
		text(w, "note", noteAt, at, n)
		at += lineGap
	}
	for _, n := range wrong {
		text(w, "wrong", noteAt, at, n)
		at += lineGap
	}
	fmt.Fprintln(w, "</g>")
	return y + height
}

func (r *row) label() string {
	f := &r.first
	if r.count > 1 {
		s := fmt.Sprintf("%d × %s", r.count, f.Operation)
		if r.mixed {
			s = fmt.Sprintf("%d × %s", r.count, f.Group)
		}
		if f.Sequence != "" {
			unit := f.Sequence[:strings.LastIndexByte(f.Sequence, ' ')+1]
			s += ", " + f.Sequence + " to " + strings.TrimPrefix(r.last.Sequence, unit)
		}
		return s
	}
	s := f.Operation
	for _, more := range []string{f.Sequence, f.Detail} {
		if more != "" {
			s += ", " + more
		}
	}
	return s
}

// notes returns the lines beside the arrow.
func (r *row) notes() (notes, wrong []string) {
	f := &r.first
	number := ""
	if f.Number > 0 {
		number = fmt.Sprintf("packet %d", f.Number)
		if r.count > 1 {
			number = fmt.Sprintf("packets %d to %d", f.Number, r.last.Number)
			if d := r.last.Time - f.Time; d > 0 {
				number += ", within " + span(d)
			}
		}
	}
	if f.Remark != "" && r.count == 1 {
		number += ": " + f.Remark
	} else if f.Remark != "" {
		number += "; the first: " + f.Remark
	}
	for _, s := range f.Wrong {
		wrong = append(wrong, wrap(s, noteLetters-4)...)
	}
	return wrap(strings.TrimPrefix(number, ": "), noteLetters), wrong
}

func short(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// wrap breaks a sentence into lines of at most n letters, between words.
func wrap(s string, n int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(s) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > n {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += short(word, n)
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// clock formats a time for the column of times.
func clock(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.3f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.6f s", d.Seconds())
}

// span formats a duration with three digits.
func span(d time.Duration) string {
	switch {
	case d < time.Microsecond:
		return d.String()
	case d < time.Millisecond:
		return fmt.Sprintf("%.3g µs", float64(d)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.3g s", d.Seconds())
}
