package conform

import (
	"bytes"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/jstemmer/go-junit-report/v2/junit"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/trace"
)

// Report is the outcome of a run.
type Report struct {
	Target    string                `json:"target"`
	Transport string                `json:"transport"`
	Device    string                `json:"device"`
	Version   string                `json:"version"` // of the tester
	Begun     time.Time             `json:"begun"`
	Count     map[suite.Verdict]int `json:"count"`
	Results   []suite.Result        `json:"results"`
	// The case in or after which the target stopped answering.
	Stopped string `json:"stopped,omitempty"`
}

func (r *Report) add(s suite.Result) {
	if r.Count == nil {
		r.Count = map[suite.Verdict]int{}
	}
	r.Count[s.Verdict]++
	r.Results = append(r.Results, s)
}

// row prints a result as soon as it is known.
func (*Report) row(w io.Writer, s *suite.Result) {
	fmt.Fprintf(w, "%s  %-24s %s\n", s.Verdict, s.ID, s.Statement)
	if s.Reason != "" {
		fmt.Fprintf(w, "      %-24s %s\n", "", s.Reason)
	}
}

// write writes the results to the requested files.
func (c *Command) write(e *cli.Env, r *Report) error {
	var err error
	if c.JSON {
		err = e.WriteJSON(r)
	} else {
		_, err = fmt.Fprintf(e.Stdout, "%d passed, %d failed, %d skipped\n", r.Count[suite.Pass], r.Count[suite.Fail], r.Count[suite.Skip])
	}
	if c.JUnit != "" {
		err = errors.Join(err, writeFile(c.JUnit, r.junit))
	}
	if c.HTML != "" {
		err = errors.Join(err, writeFile(c.HTML, func(w io.Writer) error { return page().Execute(w, r) }))
	}
	return err
}

func writeFile(name string, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o666)
}

// junit writes the results as JUnit XML.
func (r *Report) junit(w io.Writer) error {
	s := junit.Testsuite{Name: "softrnic conform " + r.Target}
	var total time.Duration
	for _, c := range r.Results {
		total += c.Elapsed
		tc := junit.Testcase{Name: c.ID, Classname: r.Transport, Time: fmt.Sprintf("%.3f", c.Elapsed.Seconds()),
			SystemOut: &junit.Output{Data: c.Statement + " (" + c.Source + ")"}}
		switch c.Verdict {
		case suite.Fail:
			tc.Failure = &junit.Result{Message: c.Reason, Data: c.Statement}
		case suite.Skip:
			tc.Skipped = &junit.Result{Message: c.Reason}
		}
		s.AddTestcase(tc)
	}
	s.Time = fmt.Sprintf("%.3f", total.Seconds())
	s.SetTimestamp(r.Begun)
	var all junit.Testsuites
	all.AddSuite(s)
	return all.WriteXML(w)
}

//go:embed report.html
var pageText string

var page = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("report").Funcs(template.FuncMap{
		"summary": summary,
		"ladder":  ladder,
		"hex":     func(b []byte) string { return hex.EncodeToString(b) },
		"since":   func(from, to time.Time) string { return to.Sub(from).Round(time.Microsecond).String() },
	}).Parse(pageText))
})

// ladder draws a case's packets as a sequence diagram.
func ladder(packets []suite.Packet) (template.HTML, error) {
	all := make([]trace.Packet, len(packets))
	for i, p := range packets {
		all[i] = trace.Packet{Time: p.Time, Data: p.Data}
	}
	var b strings.Builder
	err := trace.Draw(&b, all)
	return template.HTML(b.String()), err // generated here, with quotations escaped
}

// savePackets writes a case's packets to a file.
func savePackets(dir string, r *suite.Result) error {
	f, err := os.Create(filepath.Join(dir, r.ID+".pcap"))
	if err != nil {
		return err
	}
	w := pcapgo.NewWriterNanos(f)
	err = w.WriteFileHeader(1<<16, layers.LinkTypeRaw)
	for _, p := range r.Packets {
		if err == nil {
			err = w.WritePacket(gopacket.CaptureInfo{Timestamp: p.Time, CaptureLength: len(p.Data), Length: len(p.Data)}, p.Data)
		}
	}
	return errors.Join(err, f.Close())
}
