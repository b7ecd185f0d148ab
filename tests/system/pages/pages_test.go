//go:build linux

// Package pages runs the commands of pages as a new user does: pasted as printed, on a machine of
// Debian that has nothing else.
package pages

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/debianroot"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

const top = "../../.." // the top directory of the sources

// page is a page whose commands run on one machine.
type page struct {
	file   string
	suites []string
	clone  bool // the commands run in a clone of this repository, with this machine's Go
	parts  []part
}

// part is a section of a page. Its blocks of commands are pasted one after the other, each in the
// same directory.
type part struct {
	heading string
	servers map[string]server // by their command, which is the first of two lines
}

// server is the first line of a block for two terminals.
type server struct {
	ready string // what it prints when the second line can begin
	stays bool   // it does not end by itself
}

var pages = []page{
	{"README.md", []string{"bookworm", "trixie", "sid"}, true, []part{
		{"Unmodified C programs", map[string]server{
			"~/.local/bin/softrnic run -- ib_write_bw -R":      {ready: "Waiting for client"},
			"~/.local/bin/softrnic run --sockets -- iperf3 -s": {ready: "Server listening", stays: true},
		}},
	}},
	{"tests/system/dropin/CI.md", []string{"trixie"}, false,
		[]part{{heading: "SoftRNIC"}, {heading: "Valkey"}, {heading: "perftest"}, {heading: "UCX"}}},
}

var (
	headings = regexp.MustCompile(`(?m)^#+ (.*)\n`)
	fenced   = regexp.MustCompile("(?ms)^```\n(.*?)^```$")
)

// blocks returns the blocks of commands of a section, without those of its subsections.
func (p *page) blocks(t *testing.T, heading string) (blocks []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(top, p.file))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	found := headings.FindAllStringSubmatchIndex(text, -1)
	for i, at := range found {
		if text[at[2]:at[3]] != heading {
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
		t.Fatalf("%s has no section %q with commands", p.file, heading)
	}
	return blocks
}

// ran is the file with the commands that TestPages has run last.
const ran = "testdata/ran.txt"

// row is the line of that file before the commands of a part.
func (p *page) row(heading, suite string) string {
	return fmt.Sprintf("== %s, %s, on %s\n", p.file, heading, suite)
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

// TestRan: the commands of a section that TestPages has run are still those of the page.
func TestRan(t *testing.T) {
	of := recorded(t)
	for _, p := range pages {
		for _, part := range p.parts {
			for _, suite := range p.suites {
				row, want := p.row(part.heading, suite), strings.Join(p.blocks(t, part.heading), "")
				if got, ok := of[row]; ok && got != want {
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
func (p *page) save(t *testing.T, heading, suite string) {
	t.Helper()
	of := recorded(t)
	of[p.row(heading, suite)] = strings.Join(p.blocks(t, heading), "")
	var b strings.Builder
	for _, p := range pages {
		for _, part := range p.parts {
			for _, suite := range p.suites {
				if row := p.row(part.heading, suite); of[row] != "" {
					b.WriteString(row + of[row])
				}
			}
		}
	}
	if err := os.WriteFile(ran, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// machine is a Debian with nothing but what each has and sudo, which nobody may use.
type machine struct {
	root *debianroot.Root
	temp string   // its /tmp
	host []string // directories of this machine that it sees
	path string   // PATH there
}

const home = "/home/nobody"

// mirrorVariable is the environment variable with a directory OWNER/NAME/ for each repository of
// GitHub, for machines that do not reach GitHub. Every user must be able to read it.
const mirrorVariable = "SOFTRNIC_GITHUB"

// rewritten returns a configuration with which git takes a directory for an address.
func rewritten(dir, address string) string {
	return fmt.Sprintf("[url \"file://%s\"]\n\tinsteadOf = %s\n", dir, address)
}

// newMachine makes one. With a clone it has a clone of this repository, and this machine's Go. To
// git there the repository is also where the pages say that it is.
func newMachine(t *testing.T, suite string, clone bool) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "softrnic-pages")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	root := filepath.Join(dir, "root")
	m := &machine{temp: filepath.Join(dir, "tmp"), path: "/usr/local/bin:/usr/bin:/bin"}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(m.temp, 0o777), os.Chmod(m.temp, 0o777|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	if m.root, err = debianroot.New(root, suite, []string{"sudo", "mount", "ca-certificates"}); err != nil {
		t.Fatal(err)
	}
	const repository = "/srv/softrnic.git"
	command(t, "git", "clone", "-q", "--bare", top, root+repository)
	command(t, "mkdir", "-p", root+home)
	// Where this machine reaches others through a proxy of its own, so must that one.
	command(t, "cp", "-a", "/usr/local/share/ca-certificates", root+"/usr/local/share/")
	command(t, "chroot", root, "update-ca-certificates")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	git := rewritten(repository, "https://github.com/softrnic/softrnic")
	if mirror := os.Getenv(mirrorVariable); mirror != "" {
		m.host = append(m.host, mirror)
		git += rewritten(mirror+"/", "https://github.com/")
	}
	for file, text := range map[string]string{
		"/etc/gitconfig":        git + "[safe]\n\tdirectory = *\n",
		"/etc/hosts":            "127.0.0.1 localhost " + host + "\n",
		"/etc/sudoers.d/nobody": "nobody ALL=(ALL) NOPASSWD: ALL\n",
	} {
		if err := os.WriteFile(root+file, []byte(text), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	if clone {
		command(t, "git", "clone", "-q", root+repository, root+home+"/softrnic")
		out, err := exec.Command("go", "env", "GOROOT").Output()
		if err != nil {
			t.Fatal(err)
		}
		goroot := strings.TrimSpace(string(out))
		m.host, m.path = append(m.host, goroot), goroot+"/bin:"+m.path
	}
	command(t, "chown", "-R", "65534:65534", root+home)
	return m
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// paste returns a command that runs lines as nobody, in a shell that ends when one fails.
func (m *machine) paste(dir, lines string) *exec.Cmd {
	cmd := m.root.Command(m.temp, m.host, "setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups",
		"env", "-i", "USER=nobody", "HOME="+home, "PATH="+m.path, "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
		"bash", "-euo", "pipefail", "-c", "cd "+dir+"\n"+lines)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Minute
	return cmd
}

// run runs a block.
func (m *machine) run(t *testing.T, p part, dir, block string) {
	t.Helper()
	first, second, two := strings.Cut(block, "\n")
	server, ok := p.servers[first]
	if !ok || !two {
		out, err := m.paste(dir, block).CombinedOutput()
		t.Logf("%s%s", block, tail(out))
		if err != nil {
			t.Fatalf("%v", err)
		}
		return
	}
	cmd := m.paste(dir, first)
	said, ended := proc.Start(t, cmd)
	if err := said.WaitFor(server.ready, ended); err != nil {
		t.Fatalf("%s: %v\n%s", first, err, said.String())
	}
	out, err := m.paste(dir, second).CombinedOutput()
	t.Logf("%s%s", second, tail(out))
	if err != nil || server.stays {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
	}
	serverErr := <-ended
	if err != nil || serverErr != nil && !server.stays {
		t.Fatalf("%v, %s: %v\n%s", err, first, serverErr, said.String())
	}
}

// tail is the end of what a command has printed.
func tail(out []byte) []byte { return out[max(0, len(out)-4000):] }

// TestPages pastes the commands of each page on a new machine of the suite.
func TestPages(t *testing.T) {
	gate.Long(t)
	if os.Getuid() != 0 {
		t.Skip("a root file system needs root")
	}
	suite := gate.Suite()
	for _, p := range pages {
		if !slices.Contains(p.suites, suite) {
			continue
		}
		t.Run(path.Base(p.file), func(t *testing.T) {
			m, dir := newMachine(t, suite, p.clone), home
			if p.clone {
				dir += "/softrnic"
			}
			for _, part := range p.parts {
				t.Run(part.heading, func(t *testing.T) {
					for _, block := range p.blocks(t, part.heading) {
						m.run(t, part, dir, block)
					}
					p.save(t, part.heading, suite)
				})
			}
		})
	}
}
