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
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/debianroot"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

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
	if m.root, err = debianroot.New(root, suite, []string{"sudo", "mount"}); err != nil {
		t.Fatal(err)
	}
	const repository = "/srv/softrnic.git"
	command(t, "git", "clone", "-q", "--bare", top, root+repository)
	command(t, "mkdir", "-p", root+home)
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
	cmd := m.paste(dir, "stdbuf -oL "+first) // line by line, as in a terminal
	said, ended := proc.Start(t, cmd)
	end := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	if err := said.WaitFor(server.ready, ended); err != nil {
		end()
		t.Fatalf("%s: %v\n%s", first, err, said.String())
	}
	out, err := m.paste(dir, second).CombinedOutput()
	t.Logf("%s%s", second, tail(out))
	if err != nil || server.stays {
		end()
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
		t.Run(path.Base(p.name), func(t *testing.T) {
			m, dir := newMachine(t, suite, p.clone), home
			if p.clone {
				dir += "/softrnic"
			}
			for _, part := range p.parts {
				t.Run(part.heading, func(t *testing.T) {
					for _, block := range part.blocks(t) {
						m.run(t, part, dir, block)
					}
					part.save(t, suite)
				})
			}
		})
	}
}
