package link

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"eaglebatch/extract/backend"
)

// get asks for a page and returns what it says.
func get(c *Client, url string) (string, error) {
	rq, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	rs, err := c.Do(rq)
	if err != nil {
		return "", err
	}
	defer rs.Body.Close()
	b, err := io.ReadAll(rs.Body)
	return string(b), err
}

// TestReconnect: what listens after all connections are gone is not asked.
func TestReconnect(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		_, _ = io.WriteString(w, "one")
	}))
	defer s.Close()
	c := New(4)
	c.gone = 0
	for range 3 {
		if text, err := get(c, s.URL); text != "one" || err != nil {
			t.Fatalf("%q, %v", text, err)
		}
	}
	s.CloseClientConnections()
	c.Close() // whether the client has noticed or not
	if _, err := get(c, s.URL); !errors.Is(err, backend.ErrReconnect) || asked != 3 {
		t.Errorf("%v after %d requests, want ErrReconnect after 3", err, asked)
	}
	d := New(4)
	if text, err := get(d, s.URL); text != "one" || err != nil {
		t.Errorf("a new client: %q, %v", text, err)
	}
	d.Close()
}

// TestSwap: another server that takes the place of one that kept its connections
// is not asked, however soon it is there.
func TestSwap(t *testing.T) {
	serve := func(l net.Listener, what string) *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, what) }))
		if l != nil {
			_ = s.Listener.Close()
			s.Listener = l
		}
		s.Start()
		return s
	}
	first := serve(nil, "one")
	c := New(4)
	defer c.Close()
	c.gone = 1 << 60
	for range 2 {
		if text, err := get(c, first.URL); text != "one" || err != nil {
			t.Fatalf("%q, %v", text, err)
		}
	}
	first.Close()
	l, err := net.Listen("tcp", first.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	second := serve(l, "another")
	defer second.Close()
	// The request may be the one to find the connection gone, or come after that.
	if text, err := get(c, second.URL); !errors.Is(err, backend.ErrReconnect) && !errors.Is(err, errBroke) {
		t.Errorf("%q, %v: want that the server is gone", text, err)
	}
}

// TestBroken: a server that dies of a request is told from one that was gone
// before it came, however the transport tries to send it again.
func TestBroken(t *testing.T) {
	die := false
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if die {
			panic(http.ErrAbortHandler)
		}
	}))
	defer s.Close()
	c := New(1)
	defer c.Close()
	for range 2 {
		if _, err := get(c, s.URL); err != nil {
			t.Fatal(err)
		}
	}
	die = true
	if _, err := get(c, s.URL); errors.Is(err, backend.ErrReconnect) || !Severed(err) {
		t.Errorf("%v, want that the connection broke", err)
	}
}

// TestShortConnections: a server that closes after each answer is not another one
// each time.
func TestShortConnections(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.SetKeepAlivesEnabled(false)
	s.Start()
	defer s.Close()
	c := New(1)
	defer c.Close()
	c.gone = 1 << 60
	for range 5 {
		if _, err := get(c, s.URL); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSevered(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	c := New(1)
	defer c.Close()
	if _, err := get(c, s.URL); !Severed(err) {
		t.Errorf("a connection that broke: %v", err)
	}
	s.Close()
	if _, err := get(New(1), s.URL); !Severed(err) {
		t.Errorf("nobody listens: %v", err)
	}
	if Severed(nil) {
		t.Error("nothing broke")
	}
}
