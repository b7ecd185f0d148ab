//go:build linux

package main

// Programs that use TCP, on softrnic run --sockets and by themselves, on the loopback interface.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/tests/internal/namespace"
)

// programUser is nobody: PostgreSQL refuses to run as root.
const programUser = 65534

// socketProgram is a server that listens on the loopback interface, and its client. In their
// arguments DIR is a directory of their user, and ADDR the server's address.
type socketProgram struct {
	name   string
	goal   float64
	unit   string
	files  map[string]string // to write to DIR
	before []string          // a command that runs once
	server []string
	port   int
	fill   []string // a command that runs once while the server does
	client []string
	unix   []string // the client on the server's own Unix socket, for comparison; nil if it has none
	figure func(out []byte) (float64, error)
}

// programs have one connection to many, and small requests to long streams.
var programs = []socketProgram{
	{
		name: "iperf3", goal: 2, unit: "Gbit/s",
		server: []string{"iperf3", "-s", "-B", "ADDR", "-p", "5201"}, port: 5201,
		client: []string{"iperf3", "-c", "ADDR", "-p", "5201", "-t", "1", "-J"},
		figure: func(out []byte) (float64, error) {
			var r struct {
				End struct {
					Received struct {
						Bits float64 `json:"bits_per_second"`
					} `json:"sum_received"`
				} `json:"end"`
			}
			err := json.Unmarshal(out, &r)
			return r.End.Received.Bits / 1e9, err
		},
	},
	{
		name: "redis-benchmark, GET, 50 connections", goal: 1.5, unit: "requests/s",
		server: []string{"redis-server", "--bind", "ADDR", "--port", "6390", "--save", "", "--protected-mode", "no",
			"--dir", "DIR", "--unixsocket", "DIR/socket"}, port: 6390,
		client: []string{"redis-benchmark", "-h", "ADDR", "-p", "6390", "-t", "get", "-c", "50", "-n", "50000", "--csv"},
		unix:   []string{"redis-benchmark", "-s", "DIR/socket", "-t", "get", "-c", "50", "-n", "50000", "--csv"},
		figure: matched(`"GET","([\d.]+)"`),
	},
	{
		name: "pgbench, select only, 4 connections", goal: 1.5, unit: "requests/s",
		files:  map[string]string{"hba": "local all all trust\nhost all all 10.0.0.0/8 trust\n"},
		before: []string{"initdb", "-D", "DIR/db", "-U", "postgres", "--no-sync"},
		server: []string{"postgres", "-D", "DIR/db", "-k", "DIR", "-h", "ADDR", "-p", "5440", "-c", "fsync=off", "-c", "hba_file=DIR/hba"},
		port:   5440,
		fill:   []string{"pgbench", "-h", "ADDR", "-p", "5440", "-U", "postgres", "-q", "-i", "postgres"},
		client: []string{"pgbench", "-h", "ADDR", "-p", "5440", "-U", "postgres", "-n", "-S", "-c", "4", "-j", "2", "-T", "2", "postgres"},
		unix:   []string{"pgbench", "-h", "DIR", "-p", "5440", "-U", "postgres", "-n", "-S", "-c", "4", "-j", "2", "-T", "2", "postgres"},
		figure: matched(`tps = ([\d.]+)`),
	},
	{
		name: "wrk on nginx, 50 connections", goal: 1.5, unit: "requests/s",
		files: map[string]string{"nginx.conf": `worker_processes 1; daemon off; pid DIR/pid; error_log DIR/log; events {}
http { access_log off; client_body_temp_path DIR/1; proxy_temp_path DIR/2; fastcgi_temp_path DIR/3; uwsgi_temp_path DIR/4;
scgi_temp_path DIR/5; server { listen ADDR:8080; location = / { return 200 "a short answer\n"; } } }`},
		server: []string{"/usr/sbin/nginx", "-e", "DIR/log", "-c", "DIR/nginx.conf"}, port: 8080,
		client: []string{"wrk", "-t", "1", "-c", "50", "-d", "1s", "http://ADDR:8080/"},
		figure: matched(`Requests/sec:\s+([\d.]+)`),
	},
}

// matched returns the number that a pattern finds in a program's output.
func matched(pattern string) func([]byte) (float64, error) {
	re := regexp.MustCompile(pattern)
	return func(out []byte) (float64, error) {
		m := re.FindSubmatch(out)
		if m == nil {
			return 0, fmt.Errorf("no %s in %.200q", pattern, out)
		}
		return strconv.ParseFloat(string(m[1]), 64)
	}
}

// programExperiments compare each program with itself on plain TCP.
func programExperiments() (all []*experiment) {
	for _, p := range programs {
		rows := []*row{
			{What: p.name + ", run --sockets --sockets-direct, loopback", Goal: p.goal, Unit: p.unit, Against: "plain TCP"},
			{What: p.name + ", run --sockets, loopback", Goal: p.goal, Unit: p.unit, Against: "plain TCP"},
		}
		all = append(all, &experiment{rows, func(ctx context.Context, l *lab) error {
			plain, err := l.program(ctx, &p, p.client)
			if err != nil {
				return err
			}
			if p.unix != nil {
				figure, err := l.program(ctx, &p, p.unix)
				if err != nil {
					return err
				}
				rows[0].Floor, rows[0].FloorOf = append(rows[0].Floor, figure/plain), "the program itself on a Unix socket"
			}
			for i, under := range [][]string{{"run", "--sockets", "--sockets-direct", "--"}, {"run", "--sockets", "--"}} {
				figure, err := l.program(ctx, &p, p.client, under...)
				if err != nil {
					return err
				}
				rows[i].add(figure, plain)
			}
			return nil
		}})
	}
	return all
}

// program starts a program's server, and returns the figure of a client of it. Both run under
// softrnic with the arguments under, if there are any.
func (l *lab) program(ctx context.Context, p *socketProgram, client []string, under ...string) (figure float64, err error) {
	if len(under) > 0 {
		if err := l.install(ctx); err != nil {
			return 0, err
		}
		under = append([]string{filepath.Join(l.prefix, "bin", "softrnic")}, under...)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*programTimeout)
	defer cancel()
	dir := filepath.Join(l.dir, "programs", strings.Map(func(r rune) rune {
		if r == ' ' || r == ',' {
			return '_'
		}
		return r
	}, p.name))
	fill := p.fill
	if l.prepared[dir] {
		fill = nil
	} else if err := l.prepareProgram(ctx, p, dir); err != nil {
		return 0, err
	}
	var log bytes.Buffer
	server, err := l.startAs(ctx, dir, &log, &log, slices.Concat(under, p.server))
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = unix.Kill(-server.Process.Pid, unix.SIGINT) // softrnic, and the server itself
		ended := make(chan struct{})
		go func() { _ = server.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = unix.Kill(-server.Process.Pid, unix.SIGKILL)
			<-ended
		}
		if err != nil {
			err = fmt.Errorf("%w; the server: %s", err, bytes.TrimSpace(log.Bytes()))
		}
	}()
	if err := l.awaitPort(ctx, p.port); err != nil {
		return 0, err
	}
	if fill != nil {
		if _, err := l.outputAs(ctx, dir, fill); err != nil {
			return 0, err
		}
	}
	l.prepared[dir] = true
	out, err := l.outputAs(ctx, dir, slices.Concat(under, client))
	if err != nil {
		return 0, err
	}
	return p.figure(out)
}

// install installs all of SoftRNIC at l.prefix.
func (l *lab) install(ctx context.Context) error {
	if l.prefix != "" {
		return nil
	}
	prefix := filepath.Join(l.dir, "prefix")
	build := exec.CommandContext(ctx, "go", "run", module+"/cmd/dropin/build", "-prefix", prefix)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", build, err, bytes.TrimSpace(out))
	}
	l.prefix = prefix
	return nil
}

// prepareProgram makes a program's directory, and runs the command that comes first.
func (l *lab) prepareProgram(ctx context.Context, p *socketProgram, dir string) error {
	if err := os.RemoveAll(dir); err != nil { // left by an attempt that failed
		return err
	}
	for _, d := range []string{l.dir, filepath.Dir(dir)} {
		if err := errors.Join(os.MkdirAll(d, 0o755), os.Chmod(d, 0o755)); err != nil {
			return err
		}
	}
	run := filepath.Join(dir, "run")
	if err := os.MkdirAll(run, 0o700); err != nil {
		return err
	}
	for name, text := range p.files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(replaced(text, dir)), 0o644); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Chown(dir, programUser, programUser), os.Chown(run, programUser, programUser)); err != nil {
		return err
	}
	if len(p.before) == 0 {
		return nil
	}
	_, err := l.outputAs(ctx, dir, p.before)
	return err
}

// replaced replaces DIR, and ADDR by the namespace's own address. A connection to that goes over
// the loopback interface too, and a device has it.
func replaced(text, dir string) string {
	return strings.NewReplacer("DIR", dir, "ADDR", hostOf(socketAddrs[0])).Replace(text)
}

// startAs starts a command in the lab's namespace as programUser.
func (l *lab) startAs(ctx context.Context, dir string, stdout, stderr io.Writer, args []string) (*exec.Cmd, error) {
	args = slices.Clone(args)
	for i := range args {
		args[i] = replaced(args[i], dir)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, stdout, stderr
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+filepath.Join(dir, "run"), "HOME="+dir, "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: programUser, Gid: programUser}}
	return cmd, namespace.Do(l.inside, cmd.Start)
}

func (l *lab) outputAs(ctx context.Context, dir string, args []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd, err := l.startAs(ctx, dir, &stdout, &stderr, args)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil { // iperf3 -J has its errors in its JSON
		return nil, fmt.Errorf("%s: %w: %s%s", strings.Join(args, " "), err, &stderr, bytes.TrimSpace(stdout.Bytes()))
	}
	return stdout.Bytes(), nil
}

// awaitPort waits until a server listens. Over RDMA it listens before.
func (l *lab) awaitPort(ctx context.Context, port int) error {
	for {
		err := namespace.Do(l.inside, func() error {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(hostOf(socketAddrs[0]), strconv.Itoa(port)), time.Second)
			if err == nil {
				err = c.Close()
			}
			return err
		})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nobody listens on port %d: %w", port, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
