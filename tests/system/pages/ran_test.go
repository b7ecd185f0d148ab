//go:build linux

package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const top = "../../.." // the top directory of the sources

// page is a page whose commands run on one machine.
type page struct {
	name   string
	suites []string
	clone  bool // the commands run in a clone of this repository, with this machine's Go
	parts  []part
}

// part is a section of a file. Its blocks of commands are pasted one after the other, each in the
// same directory.
type part struct {
	file    string
	heading string
	servers map[string]server // by their command, which is the first of two lines
}

// server is the first line of a block for two terminals.
type server struct {
	ready string // what it prints when the second line can begin
	stays bool   // it does not end by itself
}

const (
	readme   = "README.md"
	commands = "cmd/softrnic/README.md"
	ci       = "tests/system/dropin/CI.md"
)

var pages = []page{
	{readme, []string{"bookworm", "trixie", "sid"}, true, []part{
		{readme, "Unmodified C programs", map[string]server{
			"~/.local/bin/softrnic run -- ib_write_bw -R":      {ready: "Waiting for client"},
			"~/.local/bin/softrnic run --sockets -- iperf3 -s": {ready: "Server listening", stays: true},
		}},
		{commands, "A Debian package", map[string]server{
			"softrnic run -- ib_write_bw -R":      {ready: "Waiting for client"},
			"softrnic run --sockets -- iperf3 -s": {ready: "Server listening", stays: true},
		}},
	}},
	{ci, []string{"trixie"}, false, []part{{ci, "SoftRNIC", nil}, {ci, "Valkey", nil}, {ci, "perftest", nil}, {ci, "UCX", nil}}},
}

var (
	headings = regexp.MustCompile(`(?m)^#+ (.*)\n`)
	fenced   = regexp.MustCompile("(?ms)^```\n(.*?)^```$")
)

// blocks returns the blocks of commands of a section, without those of its subsections.
func (p part) blocks(t *testing.T) (blocks []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(top, p.file))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	found := headings.FindAllStringSubmatchIndex(text, -1)
	for i, at := range found {
		if text[at[2]:at[3]] != p.heading {
			continue
		}
		end := len(text)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		for _, block := range fenced.FindAllStringSubmatch(text[at[1]:end], -1) {
			blocks = append(blocks, block[1])
		}
	}
	if blocks == nil {
		t.Fatalf("%s has no section %q with commands", p.file, p.heading)
	}
	return blocks
}

// ran is the file with the commands that TestPages has run last.
const ran = "testdata/ran.txt"

// row is the line of that file before the commands of a part.
func (p part) row(suite string) string {
	return fmt.Sprintf("== %s, %s, on %s\n", p.file, p.heading, suite)
}

// recorded reads the file.
func recorded(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(ran)
	if err != nil {
		t.Fatal(err)
	}
	of, row := map[string]string{}, ""
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "== ") {
			row = line
			continue
		}
		of[row] += line
	}
	return of
}

// TestRan: TestPages has run the commands of each section on each release, as the page has them.
func TestRan(t *testing.T) {
	of := recorded(t)
	for _, p := range pages {
		for _, part := range p.parts {
			for _, suite := range p.suites {
				row, want := part.row(suite), strings.Join(part.blocks(t), "")
				if got := of[row]; got != want {
					t.Errorf("%sthe page has\n%s%s has\n%s.ci/run long pages-%s runs the commands, and writes the file", row, want, ran,
						got, suite)
				}
				delete(of, row)
			}
		}
	}
	for row := range of {
		t.Errorf("%s has a section that no page has: %s", ran, row)
	}
}

// save writes the commands of a part to the file.
func (p part) save(t *testing.T, suite string) {
	t.Helper()
	of := recorded(t)
	of[p.row(suite)] = strings.Join(p.blocks(t), "")
	var b strings.Builder
	for _, p := range pages {
		for _, part := range p.parts {
			for _, suite := range p.suites {
				if row := part.row(suite); of[row] != "" {
					b.WriteString(row + of[row])
				}
			}
		}
	}
	if err := os.WriteFile(ran, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
