//go:build linux && amd64

package dropin

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// socketProgram is a server and its clients without RDMA, whose TCP connections softrnic run
// --sockets carries. In their arguments SERVER is the server's address, NET its network, and DIR a
// directory of the user. DIR has the file data with DATA random bytes.
type socketProgram struct {
	name    string            // the server and its means, as in the table of programs
	program string            // required file
	pkg     string            // package of this file
	files   map[string]string // to write to DIR
	before  []string          // commands to run first
	server  string            // a command
	clients []string          // commands, in turn
	copy    string            // file that must then equal data
	says    []string          // of the clients
	check   func(dir string) error
	ends    bool   // the server ends by itself, or on request of a client
	bytes   uint64 // minimum that each side's device carries
}

const dataLen = 8 << 20

// postgres is the directory of the newest PostgreSQL that is installed.
var postgres = func() string {
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(dirs) == 0 {
		return "/usr/lib/postgresql/bin/"
	}
	return slices.Max(dirs) + "/"
}()

var socketPrograms = []socketProgram{
	{
		name: "iperf3 -s, -c", program: "/usr/bin/iperf3", pkg: "iperf3", server: "iperf3 -s -1 -B SERVER",
		clients: []string{"iperf3 -c SERVER -n 20M -P 3 -R -J --logfile DIR/report"}, check: iperf3Received(20 << 20), ends: true,
		bytes: 20 << 20,
	},
	{
		// It forks for each client, and listens again for the measured connection.
		name: "netserver with netperf", program: "/usr/bin/netserver", pkg: "netperf", server: "netserver -D -4 -L SERVER -p 12866",
		clients: []string{"netperf -4 -H SERVER -p 12866 -t TCP_STREAM -l -20000000", "netperf -4 -H SERVER -p 12866 -t TCP_RR -l -500"},
		says:    []string{"TCP STREAM TEST", "TCP REQUEST/RESPONSE TEST"}, bytes: 20_000_000,
	},
	{
		// Its workers are forked after it listens and daemonizes; they wait with epoll, and send
		// files with sendfile.
		name: "nginx with curl", program: "/usr/sbin/nginx", pkg: "nginx-light",
		files: map[string]string{"nginx.conf": `worker_processes 2; pid DIR/pid; error_log DIR/log; events {}
http { access_log off; sendfile on; client_body_temp_path DIR/1; proxy_temp_path DIR/2; fastcgi_temp_path DIR/3; uwsgi_temp_path DIR/4;
scgi_temp_path DIR/5; server { listen SERVER:8080; root DIR; location = /who { return 200 "$remote_addr to $server_addr"; } } }`},
		server: "/usr/sbin/nginx -e DIR/log -c DIR/nginx.conf",
		clients: []string{
			"curl -sS --fail -o DIR/copy http://SERVER:8080/data",
			"curl -sS --fail --parallel -o DIR/a http://SERVER:8080/data -o DIR/b http://SERVER:8080/data",
			"curl -sS http://SERVER:8080/who", "cmp DIR/a DIR/b", "/bin/sh -c kill\u00a0$(cat\u00a0DIR/pid)",
		},
		copy: "copy", says: []string{"CLIENT to SERVER"}, ends: true, bytes: 3 * dataLen,
	},
	{
		name: "redis-server with redis-benchmark", program: "/usr/bin/redis-server", pkg: "redis-server",
		server: "redis-server --bind SERVER --port 6390 --protected-mode no --save --dir DIR",
		clients: []string{
			"redis-benchmark -h SERVER -p 6390 -n 2000 -c 20 -d 1000 -t set,get --csv",
			"/bin/sh -c redis-cli\u00a0-h\u00a0SERVER\u00a0-p\u00a06390\u00a0-x\u00a0set\u00a0large\u00a0<DIR/data",
			fmt.Sprintf("/bin/sh -c "+
				"redis-cli\u00a0-h\u00a0SERVER\u00a0-p\u00a06390\u00a0get\u00a0large|head\u00a0-c\u00a0%d\u00a0>DIR/copy",
				dataLen), // it adds a newline
			"redis-cli -h SERVER -p 6390 shutdown nosave",
		},
		copy: "copy", says: []string{`"SET"`, `"GET"`}, ends: true, bytes: 2*2000*1000 + 2*dataLen,
	},
	{
		// It forks for each connection, and runs a program whose input and output are the
		// connection.
		name: "socat TCP-LISTEN, TCP", program: "/usr/bin/socat", pkg: "socat",
		server:  "socat -t 30 TCP-LISTEN:7001,bind=SERVER,reuseaddr,fork EXEC:/bin/cat",
		clients: []string{"/bin/sh -c socat\u00a0-t\u00a030\u00a0-\u00a0TCP:SERVER:7001\u00a0<DIR/data\u00a0>DIR/copy"},
		copy:    "copy", bytes: 2 * dataLen,
	},
	{
		// It starts itself again for each connection.
		name: "sshd with sftp", program: "/usr/sbin/sshd", pkg: "openssh-server",
		files: map[string]string{
			"sshd_config": "ListenAddress SERVER\nPort 2222\nHostKey DIR/host\nAuthorizedKeysFile DIR/user.pub\nStrictModes no\nUsePAM " +
				"yes\nPidFile none\nSubsystem sftp internal-sftp\n",
			"batch": "put DIR/data DIR/there\nget DIR/there DIR/copy\n",
		},
		before: []string{"ssh-keygen -q -t ed25519 -N '' -f DIR/host", "ssh-keygen -q -t ed25519 -N '' -f DIR/user"},
		server: "/usr/sbin/sshd -D -e -f DIR/sshd_config",
		clients: []string{"sftp -q -F none -b DIR/batch -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -i DIR/user -P 2222 " +
			"SERVER"},
		copy: "copy", bytes: 2 * dataLen,
	},
	{
		// It forks for each connection, and accepts only clients of the right network.
		name: "postgres with pgbench", program: postgres + "postgres", pkg: "postgresql",
		files:  map[string]string{"hba": "host all all NET trust\n"},
		before: []string{postgres + "initdb -D DIR/db -U postgres --no-sync"},
		server: postgres + "postgres -D DIR/db -k DIR -h SERVER -p 5440 -c fsync=off -c hba_file=DIR/hba",
		clients: []string{
			"pgbench -h SERVER -p 5440 -U postgres -q -i postgres", "pgbench -h SERVER -p 5440 -U postgres -c 4 -j 2 -t 50 postgres",
			"psql -h SERVER -p 5440 -U postgres -tAc " +
				"select\u00a0count(*)||'\u00a0of\u00a0'||inet_client_addr()\u00a0from\u00a0pgbench_history postgres",
		},
		says: []string{"200/200", "200 of CLIENT"}, bytes: 1 << 20,
	},
}

// iperf3Received checks in iperf3's report that the given number of bytes has arrived.
func iperf3Received(bytes uint64) func(dir string) error {
	return func(dir string) error {
		text, err := os.ReadFile(filepath.Join(dir, "report"))
		if err != nil {
			return err
		}
		var report struct {
			End struct {
				Received struct{ Bytes uint64 } `json:"sum_received"`
			}
		}
		if err := json.Unmarshal(text, &report); err != nil {
			return err
		}
		if got := report.End.Received.Bytes; got < bytes {
			return fmt.Errorf("iperf3 has received %d bytes, not %d:\n%s", got, bytes, text)
		}
		return nil
	}
}

// newSocketPrograms are programs that Debian 12 does not have.
var newSocketPrograms = []socketProgram{
	{
		name: "valkey-server with valkey-benchmark", program: "/usr/bin/valkey-server", pkg: "valkey-server",
		server: "valkey-server --bind SERVER --port 6391 --protected-mode no --save --dir DIR",
		clients: []string{
			"valkey-benchmark -h SERVER -p 6391 -n 2000 -c 20 -d 1000 -t set,get --csv",
			"valkey-cli -h SERVER -p 6391 shutdown nosave",
		},
		says: []string{`"SET"`, `"GET"`}, ends: true, bytes: 2 * 2000 * 1000,
	},
	{
		name: "sockperf sr --tcp, ping-pong --tcp", program: "/usr/bin/sockperf", pkg: "sockperf",
		server:  "sockperf sr --tcp -i SERVER -p 11111",
		clients: []string{"sockperf ping-pong --tcp -i SERVER -p 11111 -t 1 -m 1000"},
		says:    []string{"# dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0"},
		bytes:   64 << 10, // it sends for a second; on a busy machine that is not much
	},
}

func TestSocketPrograms(t *testing.T) {
	gate.System(t)
	runSocketPrograms(t, socketPrograms)
}

// TestDirectSocketPrograms: the same programs with --sockets-direct. The devices carry little.
func TestDirectSocketPrograms(t *testing.T) {
	gate.System(t)
	t.Setenv("PATH", filepath.Clean(postgres)+":"+os.Getenv("PATH"))
	for i, p := range socketPrograms {
		m := []cmMedium{{links[1], "roce", "RoCEv2"}, {links[0], "iwarp", "iWARP"}}[i%2]
		t.Run(strings.Join([]string{p.name, m.link, m.transport}, " "), func(t *testing.T) {
			needs(t, p.program, p.pkg)
			p.run(t, m, true)
		})
	}
}

// TestDirectSockets runs testdata/direct_usual.py and direct_corners.py over TCP and with
// --sockets-direct. They print the same.
func TestDirectSockets(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/python3", "python3")
	for _, p := range []struct {
		file   string
		direct int // connections that are handed over, at least
	}{{"direct_usual.py", 13}, {"direct_corners.py", 22}} {
		t.Run(p.file, func(t *testing.T) {
			tcp, _ := runDirect(t, p.file, 7485, nil)
			direct, n := runDirect(t, p.file, 7545, []string{command(t), "run", "--sockets", "--sockets-direct", "--sockets-wait", "20s", "--"})
			if n < p.direct {
				t.Errorf("%d connections are handed over, want %d", n, p.direct)
			}
			if tcp != direct {
				t.Errorf("over TCP:\n%s\ndirect:\n%s", tcp, direct)
			}
		})
	}
}

// runDirect runs a program of testdata, by a command or alone, as server and client. It returns
// what the client prints, and how many connections are handed over. The program also uses the ports
// 10 and 20 after that at which it listens.
func runDirect(t *testing.T, file string, port int, how []string) (printed string, handedOver int) {
	t.Helper()
	text := ""
	for _, part := range []string{"direct.py", file} {
		b, err := os.ReadFile(filepath.Join("testdata", part))
		if err != nil {
			t.Fatal(err)
		}
		text += string(b) + "\n\n"
	}
	text += "main()\n"
	server, client := links[1].pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	on := func(n *node, args ...string) *exec.Cmd {
		args = slices.Concat(how, []string{"/usr/bin/python3", "-c", text}, args)
		cmd := n.program(ctx, t, args[0], args[1:]...)
		cmd.Env = append(cmd.Env, "SOFTRNIC_LOG=info")
		return cmd
	}
	s := on(server, "server", links[1].server, fmt.Sprint(port))
	said, ended := proc.Start(t, s)
	defer func() { _ = s.Process.Kill() }()
	ready := func() error { return listens(port, ended) }
	if how != nil {
		ready = func() error { return said.WaitFor("listens over RDMA", ended) }
	}
	if err := ready(); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	c := on(client, "client", links[1].server, fmt.Sprint(port), links[1].client)
	var logged bytes.Buffer
	c.Stderr = &logged
	out, err := c.Output()
	if err != nil {
		t.Fatalf("the client: %v\n%s%s\nthe server:\n%s", err, out, logged.String(), said.String())
	}
	if err := <-ended; err != nil {
		t.Fatalf("the server: %v\n%s", err, said.String())
	}
	return string(out), strings.Count(logged.String(), "handed over")
}

func TestNewSocketPrograms(t *testing.T) {
	gate.Long(t)
	runSocketPrograms(t, newSocketPrograms)
}

func runSocketPrograms(t *testing.T, list []socketProgram) {
	// Search path of the table of programs.
	t.Setenv("PATH", filepath.Clean(postgres)+":"+os.Getenv("PATH"))
	media := []cmMedium{{links[0], "roce", "RoCEv2"}, {links[0], "iwarp", "iWARP"}, {links[1], "roce", "RoCEv2"}}
	for i, p := range list {
		for j, m := range media {
			if !turn(i, j, len(media)) {
				continue
			}
			t.Run(strings.Join([]string{p.name, m.link, m.transport}, " "), func(t *testing.T) {
				needs(t, p.program, p.pkg)
				programs.Ran(t, p.name, m.name()+" ("+m.called+"), by `--sockets`")
				p.run(t, m, false)
			})
		}
	}
}

// run runs the programs on a medium, with --sockets-direct or without.
func (p *socketProgram) run(t *testing.T, m cmMedium, direct bool) {
	t.Helper()
	softrnic := command(t)
	server, client := m.pair(t)
	dir := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	address, network := m.server, m.server+"/32"
	if a, _, ok := strings.Cut(m.server, "/"); ok {
		address, network = a, m.server
	}
	clientAddress, _, _ := strings.Cut(m.client, "/")
	if m.name() == "sockets" {
		network = "127.0.0.0/8"
	}
	fill := strings.NewReplacer("SERVER", address, "CLIENT", clientAddress, "NET", network, "DIR", dir).Replace
	// words returns those of a command. A no-break space does not separate words.
	words := func(line string) (args []string) {
		for _, arg := range strings.Fields(strings.ReplaceAll(line, "\u00a0", "\x00")) {
			args = append(args, strings.Trim(fill(strings.ReplaceAll(arg, "\x00", " ")), "'"))
		}
		return args
	}
	on := func(n *node, args ...string) *exec.Cmd {
		cmd := n.program(ctx, t, args[0], args[1:]...)
		cmd.Env = append(cmd.Env, "SOFTRNIC_LOG=info", "HOME="+dir, "TMPDIR="+dir, "SOFTRNIC_TRANSPORT="+m.transport)
		cmd.Dir = dir
		return cmd
	}
	overRDMA := func(line string) []string {
		how := []string{softrnic, "run", "--sockets", "--sockets-wait", "20s", "--"}
		if direct {
			how = slices.Insert(how, 3, "--sockets-direct")
		}
		return append(how, words(line)...)
	}
	data := make([]byte, dataLen)
	_, _ = rand.Read(data)
	files := map[string]string{"data": string(data)}
	for name, text := range p.files {
		files[name] = fill(text)
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		err := os.WriteFile(file, []byte(text), 0o600)
		if os.Getuid() == 0 {
			err = errors.Join(err, os.Chown(file, nobody, nobody))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range p.before {
		if out, err := on(&node{}, words(line)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}

	s := on(server, overRDMA(p.server)...)
	said, ended := proc.Start(t, s)
	defer func() { _ = s.Process.Kill() }()
	defer endDaemon(filepath.Join(dir, "pid"))
	if err := said.WaitFor("listens over RDMA", ended); err != nil {
		t.Fatalf("%s: %v\n%s", p.server, err, said.String())
	}
	var all bytes.Buffer
	for _, line := range p.clients {
		out, err := on(client, overRDMA(line)...).CombinedOutput()
		all.Write(out)
		if err != nil {
			t.Fatalf("%s: %v\n%s\n%s:\n%s", line, err, out, p.server, said.String())
		}
	}
	if !p.ends {
		_ = s.Process.Signal(syscall.SIGTERM)
	}
	if <-ended; ctx.Err() != nil {
		t.Errorf("%s does not end:\n%s", p.server, said.String())
	}
	for _, what := range p.says {
		if !strings.Contains(all.String(), fill(what)) {
			t.Errorf("the clients do not print %q:\n%s", fill(what), all.String())
		}
	}
	if direct && (!strings.Contains(all.String(), "handed over") || strings.Contains(all.String(), "left to TCP")) {
		t.Errorf("not all connections are handed over:\n%s", all.String())
	}
	if p.copy != "" {
		if got, err := os.ReadFile(filepath.Join(dir, p.copy)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes of %d are in the copy, or other ones: %v", len(got), len(data), err)
		}
	}
	if p.check != nil {
		if err := p.check(dir); err != nil {
			t.Error(err)
		}
	}
	for side, n := range map[string]*node{"client": client, "server": server} {
		c := n.counted(t)
		sum := 4*(c["port_xmit_data"]+c["port_rcv_data"]) + c["iwarp_xmit_bytes"] + c["iwarp_rcv_bytes"]
		if !direct && sum < p.bytes {
			t.Errorf("the %s's device carried %d bytes, want %d at least: %v", side, sum, p.bytes, c)
		}
		if direct && sum >= p.bytes/2 {
			t.Errorf("the %s's device carried %d bytes of a direct connection: %v", side, sum, c)
		}
	}
	if t.Failed() {
		t.Logf("%s:\n%s\nclients:\n%s", p.server, said.String(), all.String())
	}
}

// endDaemon ends a daemon that has written its process ID to a file. Daemons outlive a killed
// softrnic run, and keep their ports from later tests. One that has ended has removed the file.
func endDaemon(file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		return
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && pid > 1 {
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
}

// TestSockets runs testdata/sockets.py, which describes its checks, with a server and a client. One
// or both are run by softrnic run --sockets. If the other side has no RDMA, they use TCP.
func TestSockets(t *testing.T) {
	gate.System(t)
	const python = "/usr/bin/python3"
	needs(t, python, "python3")
	softrnic := command(t)
	script, err := filepath.Abs("testdata/sockets.py")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	ipv6 := endpoints{link: "shm:pair", server: "fd00:9::1/64", client: "fd00:9::2/64"}
	for _, test := range []struct {
		name           string
		link           endpoints
		transport      string
		server, client bool    // are run by softrnic run --sockets
		direct         [2]bool // server and client: with --sockets-direct
	}{
		{"RoCEv2 over shm", links[0], "roce", true, true, [2]bool{}},
		{"iWARP over shm", links[0], "iwarp", true, true, [2]bool{}},
		{"IPv6 over shm", ipv6, "roce", true, true, [2]bool{}},
		{"RoCEv2 over sockets", links[1], "roce", true, true, [2]bool{}},
		{"the server has no RDMA", links[1], "roce", false, true, [2]bool{}},
		{"the client has no RDMA", links[1], "roce", true, false, [2]bool{}},
		{"direct, RoCEv2 over shm", links[0], "roce", true, true, [2]bool{true, true}},
		{"direct, iWARP over shm", links[0], "iwarp", true, true, [2]bool{true, true}},
		{"direct, IPv6 over shm", ipv6, "roce", true, true, [2]bool{true, true}},
		{"direct, RoCEv2 over sockets", links[1], "roce", true, true, [2]bool{true, true}},
		{"only the server direct", links[1], "roce", true, true, [2]bool{true, false}},
		{"only the client direct", links[1], "roce", true, true, [2]bool{false, true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server, client := test.link.pair(t)
			dir := shared(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience())
			defer cancel()
			address, _, _ := strings.Cut(test.link.server, "/")
			own, _, _ := strings.Cut(test.link.client, "/")
			on := func(n *node, rdma bool, wait string, args ...string) *exec.Cmd {
				args = append([]string{python, "-c", string(text)}, args...)
				if rdma {
					how := []string{softrnic, "run", "--sockets", "--sockets-wait", wait}
					if n == server && test.direct[0] || n == client && test.direct[1] {
						how = append(how, "--sockets-direct")
					}
					args = append(append(how, "--"), args...)
				}
				cmd := n.program(ctx, t, args[0], args[1:]...)
				cmd.Env = append(cmd.Env, "SOFTRNIC_LOG=info", "SOFTRNIC_TRANSPORT="+test.transport)
				if test.direct == [2]bool{true, true} {
					cmd.Env = append(cmd.Env, "DATA_KIB=128") // the kernel holds no more of nobody's
				}
				cmd.Dir = dir
				return cmd
			}
			wait := "20s"
			if !test.server {
				wait = "200ms" // nothing answers
			}
			s := on(server, test.server, wait, "server", address, "7481")
			said, ended := proc.Start(t, s)
			defer func() { _ = s.Process.Kill() }()
			ready := func() error { return listens(7481, ended) }
			if test.server {
				ready = func() error { return said.WaitFor("listens over RDMA", ended) }
			}
			if err := ready(); err != nil {
				t.Fatalf("%v\n%s", err, said.String())
			}
			if test.server {
				if out, err := on(client, test.client, wait, "client", address, "7482", own, "refused").CombinedOutput(); err != nil {
					t.Errorf("without a listener: %v\n%s", err, out)
				}
			}
			out, err := on(client, test.client, wait, "client", address, "7481", own).CombinedOutput()
			if err != nil {
				t.Fatalf("the client: %v\n%s\nthe server:\n%s", err, out, said.String())
			}
			if err := <-ended; err != nil {
				t.Fatalf("the server: %v\n%s", err, said.String())
			}
			if over := strings.Contains(string(out), "goes over RDMA"); over != (test.server && test.client) {
				t.Errorf("over RDMA: %v\n%s", over, out)
			}
			if direct := strings.Contains(string(out), "handed over"); direct != (test.direct == [2]bool{true, true}) {
				t.Errorf("handed over: %v\n%s", direct, out)
			}
		})
	}
}

// TestSocketsSilentHost: a nonblocking program does not wait for a host that does not answer over
// RDMA. After the timeout TCP is used. If TCP gets no answer either, or the addresses are of nodes
// only, the program gets an error.
func TestSocketsSilentHost(t *testing.T) {
	gate.System(t)
	const python, wait = "/usr/bin/python3", "4s"
	needs(t, python, "python3")
	softrnic := command(t)
	text, err := os.ReadFile("testdata/sockets.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		link endpoints
		args []string
	}{
		{"TCP, and nobody", links[1], []string{"127.18.0.1", "7483", "127.18.0.2", "silent", "4", "127.18.0.3"}},
		{"nodes alone", links[0], []string{"10.9.0.77", "7483", "10.9.0.2", "silent", "4"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience())
			defer cancel()
			echo, err := net.Listen("tcp", "127.18.0.1:7483")
			if err != nil {
				t.Fatal(err)
			}
			defer echo.Close()
			go func() {
				if c, err := echo.Accept(); err == nil {
					_, _ = io.Copy(c, c)
					_ = c.Close()
				}
			}()
			_, client := test.link.pair(t)
			args := append([]string{"run", "--sockets", "--sockets-wait", wait, "--", python, "-c", string(text), "client"}, test.args...)
			cmd := client.program(ctx, t, softrnic, args...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestSocketsInterrupted: a signal interrupts a waiting connect that gets no answer over RDMA or
// TCP, after the timeout of RDMA.
func TestSocketsInterrupted(t *testing.T) {
	gate.System(t)
	const python = "/usr/bin/python3"
	needs(t, python, "python3")
	softrnic := command(t)
	text, err := os.ReadFile("testdata/sockets.py")
	if err != nil {
		t.Fatal(err)
	}
	// A listener with an unaccepted connection answers no other.
	l, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(l)
	at := &syscall.SockaddrInet4{Port: 7484, Addr: [4]byte{127, 18, 0, 1}}
	if err := errors.Join(syscall.SetsockoptInt(l, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1), syscall.Bind(l, at),
		syscall.Listen(l, 0)); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", "127.18.0.1:7484")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, client := links[1].pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	cmd := client.program(ctx, t, softrnic, "run", "--sockets", "--sockets-wait", "1s", "--", python, "-c", string(text), "client",
		"127.18.0.1", "7484",
		"127.18.0.2", "interrupted")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Over the machine's own sockets iWARP would need the program's ports: the program is not run.
func TestSocketsOverIWARPOfSockets(t *testing.T) {
	gate.System(t)
	softrnic := command(t)
	n, _ := links[1].pair(t)
	cmd := n.program(t.Context(), t, softrnic, "run", "--sockets", "--", "echo", "it ran")
	cmd.Env = append(cmd.Env, "SOFTRNIC_TRANSPORT=iwarp")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "TCP ports") ||
		strings.Contains(string(out), "it ran") {
		t.Errorf("%v\n%s", err, out)
	}
}
