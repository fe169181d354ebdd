// Package link makes HTTP clients that notice when the server at the other end
// may be another one than before.
//
// A server that restarts closes its connections. One that comes back with other
// layers or weights answers as if nothing had been: whoever has asked it through
// a Client learns of it by an error before the next answer, and can look at it
// anew.
package link

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"eaglebatch/extract/backend"
)

// Client is an HTTP client of one server. It dials as often as it needs to
// while a connection is there; some time after the last one has gone, requests
// fail with backend.ErrReconnect.
type Client struct {
	http.Client
	tr   *http.Transport
	gone time.Duration // without a connection, after which it may be another server

	mu   sync.Mutex
	live int
	last time.Time // when the last connection went; zero: there was none
}

// restart is shorter than any server needs to end and start again; some close a
// connection after each answer.
const restart = time.Second

// New returns a client that keeps up to so many connections.
func New(connections int) *Client {
	c := &Client{gone: restart}
	c.tr = &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         c.dial,
		IdleConnTimeout:     4 * time.Second, // servers close idle connections after 5
		MaxIdleConnsPerHost: connections,
		DisableCompression:  true,
	}
	c.Transport = c.tr
	return c
}

// Close closes the connections that are not in use.
func (c *Client) Close() { c.tr.CloseIdleConnections() }

func (c *Client) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c.mu.Lock()
	again := c.live == 0 && !c.last.IsZero() && time.Since(c.last) > c.gone
	c.mu.Unlock()
	if again {
		return nil, backend.ErrReconnect
	}
	d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 15 * time.Second}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.live++
	c.mu.Unlock()
	return &counted{Conn: conn, c: c}, nil
}

// counted tells its client when it is closed.
type counted struct {
	net.Conn
	c    *Client
	once sync.Once
}

func (n *counted) Close() error {
	n.once.Do(func() {
		n.c.mu.Lock()
		n.c.live--
		n.c.last = time.Now()
		n.c.mu.Unlock()
	})
	return n.Conn.Close()
}

// Severed reports whether err, of a request, means that its connection broke:
// whatever answers next may be another server.
func Severed(err error) bool {
	return err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}
